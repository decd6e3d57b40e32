"""Training runs under each recipe, beside the same run in FP32."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, nn, no_grad, optim
from mpsim.amp.recipes import RECIPES
from mpsim.experiments.training import standardised

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="training takes minutes as plain Python")

NEAR = 0.03
"""10 of the 359 test images: runs in FP32 from five seeds lie up to 7 images apart."""

UNITS = {"te-mxfp8": "b200", "te-nvfp4": "b200"}


def unit_of(recipe: str) -> str:
    if "fnuz" in recipe:
        return "mi300x"
    return UNITS.get(recipe, "b200" if "mxfp8" in recipe else "h100")


def run(recipe: str | None, steps: int, hidden: int = 32, batch: int = 64) -> tuple[float, np.ndarray[Any, Any]]:
    """Return the share of test images that are classified right after some steps, and the first weights."""
    train, test = standardised(None)
    model = nn.Sequential(
        nn.Linear(64, hidden, rng=0),
        nn.ReLU(),
        nn.Linear(hidden, hidden, rng=1),
        nn.ReLU(),
        nn.Linear(hidden, 10, rng=2),
    )
    levels = {"ms-amp": "ms-amp-o2", "deepseek-v3": "deepseek-v3"}
    options = amp.optimizer_state(levels[recipe]) if recipe in levels else {}
    optimizer = optim.AdamW(model.parameters(), lr=0.005, **options)
    order = np.random.default_rng(0)
    for _ in range(steps):
        rows = order.integers(len(train), size=batch)
        optimizer.zero_grad()
        with amp.fp8_autocast(recipe or "te-current", unit=unit_of(recipe or ""), enabled=recipe is not None):
            loss = nn.functional.cross_entropy(model(train.x[rows]), train.y[rows])
        loss.backward()
        optimizer.step()
    with no_grad(), amp.fp8_autocast(recipe or "te-current", unit=unit_of(recipe or ""), enabled=recipe is not None):
        logits = model(test.x)
    return float(np.mean(logits.data.argmax(axis=1) == test.y)), model[0].weight.data


@pytest.mark.parametrize("recipe", ["te-delayed", "te-mxfp8", "keras-float8"])
def test_a_short_run_learns_as_in_fp32_and_repeats_bit_for_bit(recipe: str):
    accuracy, weights = run(recipe, steps=40)
    assert accuracy > run(None, steps=40)[0] - NEAR
    assert_same_bits(run(recipe, steps=40)[1], weights)


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_long_run_ends_near_fp32(recipe: str):
    accuracy, _ = run(recipe, steps=400)
    assert accuracy > run(None, steps=400)[0] - NEAR
