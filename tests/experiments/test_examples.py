import dataclasses
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import experiments
from mpsim.experiments import cartpole, copying, digits, language
from mpsim.experiments.examples import ARITHMETICS, BF16, FP16, FP32, Arithmetic, Result, Run
from mpsim.nn import functional

STUDIES = (digits, language, copying, cartpole)


def ids(study: Any) -> str:
    return study.EXAMPLE.name  # type: ignore[no-any-return]


def forged(study: Any, scores: dict[Arithmetic, float]) -> Result[Any]:
    """Return a complete result in which every task has the scores given."""
    example = study.EXAMPLE
    runs = tuple(
        Run(task=task, arithmetic=arithmetic, score=scores[arithmetic], curve=(2.0, 1.0), skipped=3)
        for task, arithmetic in example.parts
    )
    return Result(example, study.Config(), runs)


# Short forms: what a few seconds of training reach. The numbers seen were 98.1 % (MLP), 96.1 % (CNN), 3.19 nats, 100 %
# and 45 steps; a coin balances for about 20, and an untrained model of characters has log 96 = 4.56 nats.


@pytest.mark.parametrize(
    ("study", "task", "arithmetic", "limit"),
    [
        (digits, digits.MLP, BF16, 0.95),
        (digits, digits.CNN, FP16, 0.93),
        (language, language.TASK, FP16, 3.3),
        (copying, copying.TASK, BF16, 0.9),
        (cartpole, cartpole.TASK, FP32, 35.0),
        (cartpole, cartpole.TASK, FP16, 35.0),
    ],
    ids=lambda x: getattr(x, "name", None) or getattr(getattr(x, "EXAMPLE", None), "name", str(x)),
)
def test_a_short_training_learns(study: Any, task: str, arithmetic: Arithmetic, limit: float):
    done = study.train(task, arithmetic, study.Config.short())
    assert (done.score > limit) is study.EXAMPLE.goal.above
    assert done.skipped <= 3
    assert (done.curve[-1] > done.curve[0]) is (study is cartpole)


def test_the_same_seed_gives_the_same_numbers_in_emulated_arithmetic():
    config = copying.Config(steps=3, batch_size=4, length=2, hidden=8)
    first, again = (copying.train(copying.TASK, FP16, config) for _ in range(2))
    other = copying.train(copying.TASK, FP16, dataclasses.replace(config, seed=1))
    assert first == again != other


def test_every_task_is_trained_in_every_arithmetic(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []

    def train(task: str, arithmetic: Arithmetic, config: Any) -> Run:
        seen.append((task, arithmetic, config))
        return Run(task=task, arithmetic=arithmetic, score=0.99, curve=(1.0,), skipped=0)

    monkeypatch.setattr(digits, "run", dataclasses.replace(digits.EXAMPLE, train=train).run)
    parts: list[int] = []
    shares: list[float] = []
    result = experiments.run(
        "digits",
        {"epochs": 7},
        progress=lambda share, _: shares.append(share),
        on_part=lambda part: parts.append(len(part.runs)),
    )
    assert [(task, arithmetic) for task, arithmetic, _ in seen] == [
        (task, arithmetic) for task in (digits.MLP, digits.CNN) for arithmetic in ARITHMETICS
    ]
    assert {config for *_, config in seen} == {digits.Config(epochs=7)}
    assert parts == [1, 2, 3, 4, 5, 6]
    assert shares == [i / 6 for i in range(7)]
    assert result.complete
    assert result.find(digits.CNN, BF16) is result.runs[-1]


# Results.


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_a_claim_holds_if_every_arithmetic_reaches_the_goal(study: Any):
    goal = study.EXAMPLE.goal
    good, bad = (goal.limit * (1.01 if goal.above is better else 0.99) for better in (True, False))
    assert all(c.holds for c in forged(study, dict.fromkeys(ARITHMETICS, good)).claims)
    for arithmetic in ARITHMETICS:
        for score in (bad, math.nan):
            claims = forged(study, {**dict.fromkeys(ARITHMETICS, good), arithmetic: score}).claims
            assert len(claims) == len(study.EXAMPLE.tasks)
            assert not any(c.holds for c in claims)


@pytest.mark.parametrize("study", STUDIES, ids=ids)
def test_a_result_is_a_table_and_json(study: Any):
    result = forged(study, dict.fromkeys(ARITHMETICS, 0.5))
    (table,) = result.tables
    assert len(table.rows) == len(study.EXAMPLE.parts)
    assert {len(row) for row in table.rows} == {len(table.columns)}
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["experiment"] == study.EXAMPLE.name
    assert data["runs"][1]["arithmetic"]["unit"] == FP16.unit
    assert data["config"] == dataclasses.asdict(study.Config())
    unfinished = dataclasses.replace(result, runs=result.runs[:1])
    assert (unfinished.complete, unfinished.claims) == (False, ())


@pytest.mark.parametrize(
    ("study", "setting", "message"),
    [
        ("digits", {"epochs": 0}, "epochs is 0; it must be at least 1"),
        ("digits", {"seed": -1}, "seed is -1; it must be at least 0"),
        ("digits", {"unit": "v100"}, "digits: setting is 'unit': it must be one of seed, epochs"),
        ("language", {"heads": 3}, "heads is 3; it must divide width, 64"),
        ("language", {"lr": math.nan}, "lr is nan"),
        ("copying", {"symbols": 1}, "symbols is 1; it must be at least 2"),
        ("cartpole", {"discount": 1.5}, "discount is 1.5; it must be at most 1"),
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_an_error_before_anything_runs(study: str, setting: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        experiments.run(study, setting, on_part=lambda _: pytest.fail("a part was run"))


# Language.


def test_the_text_is_the_documentation_in_96_characters():
    from pydoc_data.topics import topics

    codes = language.text()
    assert len(language.ALPHABET) == len(set(language.ALPHABET)) == 96
    first = topics[min(topics)]
    start = "".join(language.ALPHABET[i] for i in codes[: len(first)])
    assert start == "".join(c if c in language.ALPHABET else "?" for c in first)
    assert len(codes) == sum(map(len, topics.values())) + len(topics) - 1


def test_a_character_does_not_see_those_that_follow():
    config = language.Config.short()
    model = language.LanguageModel(config, np.random.default_rng(0))
    seen = np.arange(10)[None]
    changed = seen.copy()
    changed[0, 6:] = 50
    before, after = model(seen).data, model(changed).data
    assert_same_bits(before[:, :6], after[:, :6])
    assert not np.array_equal(before[:, 6:], after[:, 6:])


def test_text_is_written_character_by_character():
    config = language.Config.short()
    model = language.LanguageModel(config, np.random.default_rng(0))
    written = language.generate(model, FP32, config, "The ", 5, seed=0)
    assert written.startswith("The ")
    assert len(written) == 9
    assert written == language.generate(model, FP32, config, "The ", 5, seed=0)
    assert set(written) <= set(language.ALPHABET)


# Copying.


def test_symbols_have_to_be_repeated_after_the_signal_alone():
    config = copying.Config.short()
    model = copying.Copier(config, np.random.default_rng(0))
    one, other = np.array([[0], [1]]), np.array([[1], [1]])
    logits = model(one)
    assert logits.shape == (2, 1, 2)
    assert not np.array_equal(logits.data, model(other).data)


# Cart and pole.


def by_hand(state: list[float], force: float) -> list[float]:
    """Return the state after a step, from the equations of Barto et al. 1983, appendix, for one cart."""
    x, v, angle, turning = state
    g, m_cart, m_pole, half, mu_cart, mu_pole = 9.8, 1.0, 0.1, 0.5, 0.0005, 0.000002
    sign = (v > 0) - (v < 0)
    inner = (-force - m_pole * half * turning**2 * math.sin(angle) + mu_cart * sign) / (m_cart + m_pole)
    above = g * math.sin(angle) + math.cos(angle) * inner - mu_pole * turning / (m_pole * half)
    tilting = above / (half * (4 / 3 - m_pole * math.cos(angle) ** 2 / (m_cart + m_pole)))
    pull = m_pole * half * (turning**2 * math.sin(angle) - tilting * math.cos(angle))
    moving = (force + pull - mu_cart * sign) / (m_cart + m_pole)
    return [x + 0.02 * v, v + 0.02 * moving, angle + 0.02 * turning, turning + 0.02 * tilting]


def test_carts_move_by_the_equations_of_1983():
    states = np.random.default_rng(0).uniform(-1, 1, (20, 4)) * [2, 1, 0.2, 1]
    states[0] = 0
    right = np.arange(20) % 3 == 0
    after, _ = cartpole.step(states, right)
    want = [by_hand(s, 10.0 if r else -10.0) for s, r in zip(states.tolist(), right, strict=True)]
    # The same formula in float64 with its operations in another order: a few units in the last place.
    np.testing.assert_allclose(after, want, rtol=1e-13, atol=1e-15)


def test_a_pole_that_stands_upright_falls_away_from_the_push():
    after, failed = cartpole.step(np.zeros((2, 4)), np.array([True, False]))
    assert after[0, 1] == -after[1, 1] > 0
    assert after[0, 3] == -after[1, 3] < 0
    assert not failed.any()


def test_a_cart_fails_beyond_the_track_or_the_angle():
    still = np.zeros((4, 4))
    still[:, 0] = [2.39, 2.41, 0, 0]
    still[:, 2] = np.radians([0, 0, 11.9, 12.1])
    assert cartpole.step(still, np.ones(4, np.bool_))[1].tolist() == [False, True, False, True]


def test_returns_are_discounted_sums_of_what_follows():
    got = cartpole.discounted(np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), 0.5)
    assert got.tolist() == [[1.75, 1.0], [1.5, 0.0], [1.0, 0.0]]


def test_the_loss_has_the_gradient_of_reinforce():
    """d/dz of -log p(action) is p(right) - action, weighted by the advantage."""
    policy = cartpole.Policy(3, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    played = cartpole._Episodes(
        rng.normal(size=(5, 4)).astype(np.float32),
        np.array([1, 0, 1, 1, 0], np.float32),
        rng.uniform(1, 30, 5).astype(np.float32),
        np.array([5]),
    )
    cartpole._loss(policy, played, 0.99).backward()
    logits = policy(played.states)
    targets = played.returns * np.float32(0.01)
    advantage = targets - policy.value(played.states).data[:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    weights = (functional.sigmoid(logits.detach()).data - played.right) * advantage / 5
    last = policy.action[2]
    assert last.bias.grad is not None
    # Five terms in float32, summed in another order.
    assert last.bias.grad.item() == pytest.approx(float(weights.sum()), rel=1e-4, abs=1e-6)


def test_what_other_processes_call_is_found_by_its_name():
    for study in STUDIES:
        assert pickle.loads(pickle.dumps(study.EXAMPLE.train)) is study.train
