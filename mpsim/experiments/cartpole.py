"""Cart and pole: a policy learns to balance by its returns alone, in FP32, FP16 and BF16.

The physics are those of Barto, Sutton and Anderson 1983, "Neuronlike adaptive elements that can solve difficult
learning control problems" (IEEE Trans. SMC 13), the method is REINFORCE with a baseline: Williams 1992, "Simple
statistical gradient-following algorithms for connectionist reinforcement learning" (Machine Learning 8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpsim import nn, optim
from mpsim.experiments.checks import at_least
from mpsim.experiments.examples import Arithmetic, Example, Goal, Run, Trainer
from mpsim.tensor import Tensor, no_grad

__all__ = ["EXAMPLE", "Config", "Policy", "accelerations", "discounted", "run", "step", "train"]

TASK = "cart and pole"

Floats = NDArray[np.float64]

# Barto et al. 1983, appendix; SI units.
GRAVITY, CART, POLE, HALF_LENGTH = 9.8, 1.0, 0.1, 0.5
CART_FRICTION, POLE_FRICTION = 0.0005, 0.000002
FORCE, SECONDS = 10.0, 0.02
FARTHEST, STEEPEST = 2.4, np.radians(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the study.

    Raises
    ------
    ValueError
        A number is out of range.
    """

    seed: int = 0
    """Of the initial weights, the starts and the choice of actions."""
    rounds: int = 80
    """Steps of the optimizer."""
    episodes: int = 16
    """Carts in each round."""
    longest: int = 200
    """Steps after which an episode ends."""
    hidden: int = 32
    lr: float = 2e-2
    """Adam's learning rate."""
    discount: float = 0.99

    def __post_init__(self) -> None:
        at_least(self, seed=0, rounds=1, episodes=1, longest=1, hidden=1, lr=0, discount=0)
        if self.discount > 1:
            raise ValueError(f"discount is {self.discount}; it must be at most 1")

    @classmethod
    def short(cls) -> Config:
        """Return settings that take a few seconds, and balance twice as long as a coin does."""
        return cls(rounds=15, episodes=8, longest=100)


def accelerations(state: Floats, force: Floats) -> tuple[Floats, Floats]:
    """Return the accelerations of carts and poles.

    Parameters
    ----------
    state : float64 array [n, 4]
        Place and speed of the cart; angle and angular speed of the pole.
    force : float64 array [n]
    """
    _, speed, angle, turning = state.T
    sine, cosine, total = np.sin(angle), np.cos(angle), CART + POLE
    friction = CART_FRICTION * np.sign(speed)
    pushed = (-force - POLE * HALF_LENGTH * turning**2 * sine + friction) / total
    bearing = POLE_FRICTION * turning / (POLE * HALF_LENGTH)
    lever = HALF_LENGTH * (4 / 3 - POLE * cosine**2 / total)
    tilting = (GRAVITY * sine + cosine * pushed - bearing) / lever
    moving = (force + POLE * HALF_LENGTH * (turning**2 * sine - tilting * cosine) - friction) / total
    return moving, tilting


def step(state: Floats, right: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Push carts to the right or left for a fiftieth of a second; return where they are, and who has failed."""
    moving, tilting = accelerations(state, np.where(right, FORCE, -FORCE))
    speeds = np.stack((state[:, 1], moving, state[:, 3], tilting), axis=1)
    after = state + SECONDS * speeds
    return after, (np.abs(after[:, 0]) > FARTHEST) | (np.abs(after[:, 2]) > STEEPEST)


class Policy(nn.Module):
    """Two networks of one hidden layer: how likely a push to the right is, and the return to be expected."""

    def __init__(self, hidden: int, rng: np.random.Generator) -> None:
        self.action, self.value = (
            nn.Sequential(nn.Linear(4, hidden, rng=rng), nn.Tanh(), nn.Linear(hidden, 1, rng=rng)) for _ in range(2)
        )

    def forward(self, states: NDArray[np.float32]) -> Tensor:
        """Map states [n, 4] to the logits [n] of a push to the right."""
        logits: Tensor = self.action(states).squeeze(-1)
        return logits


@dataclass(frozen=True, slots=True)
class _Episodes:
    """Steps of all carts that had not failed before, [n, ...]."""

    states: NDArray[np.float32]
    right: NDArray[np.float32]
    returns: NDArray[np.float32]
    lengths: NDArray[np.int64]


def _play(policy: Policy, arithmetic: Arithmetic, config: Config, rng: np.random.Generator) -> _Episodes:
    """Let the policy balance poles until they fall or time is up."""
    state = rng.uniform(-0.05, 0.05, (config.episodes, 4))
    up = np.ones(config.episodes, np.bool_)
    states: list[NDArray[np.float32]] = []
    actions: list[NDArray[np.bool_]] = []
    alive: list[NDArray[np.bool_]] = []
    while up.any() and len(states) < config.longest:
        seen = state.astype(np.float32)
        with no_grad(), arithmetic.region():
            logits = policy(seen).data
        right = rng.random(config.episodes) < 1 / (1 + np.exp(-logits.astype(np.float64)))
        states.append(seen)
        actions.append(right)
        alive.append(up)
        state, failed = step(state, right)
        up = up & ~failed
        state[~up] = 0  # a cart that has failed stands still
    kept = np.array(alive)
    returns = discounted(kept.astype(np.float64), config.discount)
    return _Episodes(
        np.array(states)[kept],
        np.array(actions)[kept].astype(np.float32),
        returns[kept].astype(np.float32),
        kept.sum(axis=0),
    )


def discounted(rewards: Floats, discount: float) -> Floats:
    """Return for each step [steps, n] the discounted sum of the rewards from it on."""
    returns = np.zeros_like(rewards)
    following = np.zeros(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        following = rewards[t] + discount * following
        returns[t] = following
    return returns


def _loss(policy: Policy, played: _Episodes, discount: float) -> Tensor:
    """Return REINFORCE's loss, whose gradient is that of the return, and the error of the baseline."""
    unit = np.float32(1 - discount) if discount < 1 else np.float32(0.01)
    expected = policy.value(played.states).squeeze(-1)
    targets = played.returns * unit  # of order 1
    advantage = targets - expected.data
    advantage = (advantage - advantage.mean()) / (advantage.std() + np.float32(1e-6))
    # log sigmoid(x) of a push to the right, log(1 - sigmoid(x)) of one to the left
    surprise = nn.functional.binary_cross_entropy_with_logits(policy(played.states), played.right, reduction="none")
    loss: Tensor = (surprise * advantage).mean() + nn.functional.mse_loss(expected, targets)
    return loss


def train(task: str, arithmetic: Arithmetic, config: Config) -> Run:
    """Train a policy; the curve has the mean length of each round, the score is that of the last 100 episodes."""
    policy = Policy(config.hidden, np.random.default_rng([config.seed, 0]))
    trainer = Trainer(arithmetic, optim.Adam(policy.parameters(), lr=config.lr))
    rng = np.random.default_rng([config.seed, 1])
    lengths: list[NDArray[np.int64]] = []
    for _ in range(config.rounds):
        played = _play(policy, arithmetic, config, rng)
        lengths.append(played.lengths)
        trainer.step(lambda played=played: _loss(policy, played, config.discount))  # type: ignore[misc]
    return Run(
        task=task,
        arithmetic=arithmetic,
        score=float(np.concatenate(lengths)[-100:].mean()),
        curve=tuple(float(n.mean()) for n in lengths),
        skipped=trainer.scaler.skipped,
    )


EXAMPLE = Example(
    name="cartpole",
    tasks=(TASK,),
    goal=Goal(
        what="steps balanced",
        limit=195.0,
        above=True,
        shown=".0f",
        curve="return",
        each="round",
        statement="a policy learns to balance a pole from its returns, in every arithmetic.",
        source="Barto et al. 1983; Williams 1992",
    ),
    config=Config,
    train=train,
)

run = EXAMPLE.run
