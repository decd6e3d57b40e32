"""A character language model on the Python documentation that ships with CPython, in FP32, FP16 and BF16.

A causal transformer reads `pydoc_data.topics` and predicts the next character; the last tenth of the text is for
testing. The text differs a little from one version of Python to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpsim import nn, optim
from mpsim.experiments.checks import at_least
from mpsim.experiments.examples import Arithmetic, Example, Goal, Run, Trainer
from mpsim.optim.lr_scheduler import CosineAnnealingLR
from mpsim.tensor import Tensor, no_grad

__all__ = ["ALPHABET", "EXAMPLE", "Config", "LanguageModel", "generate", "run", "text", "train", "trained"]

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The 96 characters of the model: printable ASCII and the end of a line."""

TASK = "characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the study.

    Raises
    ------
    ValueError
        A number is out of range, or ``heads`` does not divide ``width``.
    """

    seed: int = 0
    """Of the initial weights and the choice of text."""
    steps: int = 1200
    batch_size: int = 8
    length: int = 32
    """Characters that the model sees."""
    width: int = 64
    layers: int = 2
    heads: int = 2
    lr: float = 4e-3
    """Adam's learning rate at first; it falls to zero along a cosine."""

    def __post_init__(self) -> None:
        at_least(self, seed=0, steps=1, batch_size=1, length=2, width=1, layers=1, heads=1, lr=0)
        if self.width % self.heads:
            raise ValueError(f"heads is {self.heads}; it must divide width, {self.width}")

    @classmethod
    def short(cls) -> Config:
        """Return settings that take a few seconds, and come below 3.2 nats."""
        return cls(steps=40, width=32, layers=1)


def text() -> NDArray[np.intp]:
    """Return the documentation as positions in `ALPHABET`; other characters, a few quotation marks, become ``?``."""
    from pydoc_data.topics import topics

    known = {character: i for i, character in enumerate(ALPHABET)}
    whole = "\n".join(topics[name] for name in sorted(topics))
    return np.array([known.get(character, known["?"]) for character in whole], np.intp)


class LanguageModel(nn.Module):
    """A causal transformer over characters.

    Parameters
    ----------
    config : Config
    rng : numpy.random.Generator
    """

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        width = config.width
        self.characters = nn.Embedding(len(ALPHABET), width, rng=rng)
        self.places = nn.Parameter(0.02 * rng.normal(size=(config.length, width)), format="fp32")
        self.blocks = nn.ModuleList(
            nn.TransformerBlock(width, config.heads, 4 * width, 0.0, "gelu", batch_first=True, rng=rng)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False, rng=rng)

    def forward(self, characters: NDArray[np.intp]) -> Tensor:
        """Map characters [batch, length] to logits [batch, length, 96] of the next ones."""
        x = self.characters(characters) + self.places[: characters.shape[-1]]
        for block in self.blocks:
            x = block(x, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits


def loss_of(model: LanguageModel, pieces: NDArray[np.intp]) -> Tensor:
    """Return the mean cross-entropy, in nats, of each character of ``pieces`` [batch, length + 1] but the first."""
    logits = model(pieces[:, :-1])
    return nn.functional.cross_entropy(logits.reshape(-1, len(ALPHABET)), pieces[:, 1:].reshape(-1))


def trained(arithmetic: Arithmetic, config: Config) -> tuple[LanguageModel, Trainer]:
    """Return a model after training, and the losses of its steps."""
    learned = text()
    learned = learned[: len(learned) * 9 // 10]
    model = LanguageModel(config, np.random.default_rng([config.seed, 0]))
    optimizer = optim.Adam(model.parameters(), lr=config.lr)
    schedule = CosineAnnealingLR(optimizer, config.steps)
    trainer = Trainer(arithmetic, optimizer)
    chosen = np.random.default_rng([config.seed, 1])
    for _ in range(config.steps):
        starts = chosen.integers(len(learned) - config.length, size=config.batch_size)
        pieces = learned[starts[:, None] + np.arange(config.length + 1)]
        trainer.step(lambda pieces=pieces: loss_of(model, pieces))  # type: ignore[misc]
        schedule.step()
    return model, trainer


def train(task: str, arithmetic: Arithmetic, config: Config) -> Run:
    """Train the model; the curve has the loss of each step, the score is that of unseen text."""
    model, trainer = trained(arithmetic, config)
    tests = text()
    tests = tests[len(tests) * 9 // 10 :]
    starts = np.linspace(0, len(tests) - config.length - 1, 128).astype(np.intp)
    with no_grad(), arithmetic.region():
        score = loss_of(model, tests[starts[:, None] + np.arange(config.length + 1)]).item()
    return Run(
        task=task,
        arithmetic=arithmetic,
        score=score,
        curve=tuple(trainer.losses),
        skipped=trainer.scaler.skipped,
    )


def generate(model: LanguageModel, arithmetic: Arithmetic, config: Config, start: str, count: int, seed: int) -> str:
    """Return ``start`` with ``count`` characters more, each drawn from what the model expects."""
    rng = np.random.default_rng(seed)
    written = [ALPHABET.index(character) for character in start]
    for _ in range(count):
        with no_grad(), arithmetic.region():
            logits = model(np.array([written[-config.length :]]))
        probabilities = logits[0, -1].to("fp64").softmax().numpy()
        written.append(int(rng.choice(len(ALPHABET), p=probabilities / probabilities.sum())))
    return "".join(ALPHABET[i] for i in written)


EXAMPLE = Example(
    name="language",
    tasks=(TASK,),
    goal=Goal(
        what="test loss",
        limit=2.0,
        above=False,
        shown=".2f",
        curve="loss",
        each="step",
        statement="FP16 with loss scaling and BF16 train a transformer as FP32 does.",
        source="Micikevicius et al. 2018, 4; Kalamkar et al. 2019",
    ),
    config=Config,
    train=train,
)

run = EXAMPLE.run
