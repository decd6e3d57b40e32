"""Idealised accumulators against their exact twin."""

import itertools
from typing import Any

import numba
import numpy as np
import pytest

import mxcsr as fpu
from bits import assert_same_bits
from mpsim import units
from mpsim.arithmetic import dot
from mpsim.encoding import decode
from mpsim.formats import get_format
from mpsim.matmul import matmul
from mpsim.rounding import Rounding, round_to
from mpsim.units import MatrixUnit
from reference import rounded_sums as twin

MODES = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
ORDERS = [("sequential", 0), ("sequential", 1), ("sequential", 4), ("pairwise", 0)]
SHAPE = (3, 13, 4) if numba.config.DISABLE_JIT else (6, 23, 10)

Floats = np.ndarray[Any, Any]


def operands(name: str, out: str, kind: str, seed: int) -> tuple[Floats, Floats, Floats]:
    """Return a, b and c: near each other, mostly cancelling, near the ends of the accumulator's range, or any codes."""
    rng = np.random.default_rng(seed)
    m, k, n = SHAPE
    fmt, acc = get_format(name), get_format(out)
    if kind == "any":
        a, b = (decode(rng.integers(0, 1 << fmt.bits, s).astype(fmt.code_dtype), fmt) for s in ((m, k), (k, n)))
        c = decode(rng.integers(0, 1 << acc.bits, (m, n)).astype(acc.code_dtype), acc)
        return a, b, c
    low = {"subnormal": acc.emin - acc.p - 2, "overflow": acc.emax - 2}.get(kind, 0)
    split = max(fmt.emin, min(fmt.emax - 1, low // 2))
    a = np.ldexp(rng.standard_normal((m, k)), split + rng.integers(-3, 3, (m, k)))
    b = np.ldexp(rng.standard_normal((k, n)), low - split + rng.integers(-3, 3, (k, n)))
    if kind == "cancelling":
        a[:, 1::2] = -a[:, :-1:2]
        b[1::2] = b[:-1:2]
        a[rng.random(a.shape) < 0.2] = -0.0
    c = np.ldexp(rng.standard_normal((m, n)), low)
    with np.errstate(over="ignore"):
        return round_to(a.astype(np.float32), fmt), round_to(b.astype(np.float32), fmt), round_to(c, acc)


def exact(unit: MatrixUnit, a: Floats, b: Floats, c: Floats) -> Floats:
    out, pairwise = get_format(unit.out), unit.order == "pairwise"
    rows = [
        [
            twin.dot(x, y, start, out, unit.rounding, unit.block_length, pairwise)
            for y, start in zip(b.T.tolist(), starts, strict=True)
        ]
        for x, starts in zip(a.tolist(), c.tolist(), strict=True)
    ]
    d = np.array(rows, np.float32)
    d[np.isnan(d)] = np.uint32(0x7FC00000).view(np.float32)
    return d


@pytest.mark.parametrize("kind", ["near", "cancelling", "subnormal", "overflow", "any"])
@pytest.mark.parametrize("out", ["fp32", "fp16", "bf16", "e5m2"])
@pytest.mark.parametrize("mode", MODES)
def test_every_partial_sum_is_rounded_once(mode: Rounding, out: str, kind: str) -> None:
    for seed, ((order, chunk), name) in enumerate(itertools.product(ORDERS, ("fp16", "bf16"))):
        unit = units.ideal(name, out, order=order, chunk=chunk, rounding=mode)
        a, b, c = operands(name, out, kind, seed)
        got = matmul(a, b, c.astype(np.float32), unit=unit)
        assert_same_bits(got, exact(unit, a, b, c))


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
def test_dot_products_of_arithmetic_agree_where_products_are_exact(order: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(-4, 5, 300) / 4
    for out in ("fp16", "bf16"):
        unit = units.ideal("fp16", out, order=order)
        got = matmul(x, np.ones(300), unit=unit)
        assert_same_bits(np.asarray(got), np.asarray(dot(x, np.ones(300), out, order=order)))


def test_the_state_of_the_processor_and_layouts_change_nothing() -> None:
    for unit in (units.ideal("bf16", "fp32"), units.ideal("bf16", "bf16", order="pairwise")):
        a, b, c = operands("bf16", unit.out, "subnormal", 5)
        want = matmul(a, b, c, unit=unit)
        for state in () if numba.config.DISABLE_JIT else (fpu.FTZ | fpu.DAZ, fpu.ROUND_UP, fpu.ROUND_TO_ZERO):
            with fpu.mxcsr(fpu.DEFAULT | state):
                assert_same_bits(matmul(a, b, c, unit=unit), want)
        strided = np.repeat(a, 2, axis=1)[:, ::2], np.asfortranarray(b), np.repeat(c, 2, axis=0)[::2]
        assert_same_bits(matmul(*strided, unit=unit), want)
        alone = [matmul(a, b[:, [j]], c[:, [j]], unit=unit) for j in range(b.shape[1])]
        assert_same_bits(np.concatenate(alone, axis=1), want)


def test_stagnation_and_its_cures() -> None:
    ones = np.ones((1, 4096)), np.ones((4096, 1))
    results = {
        (order, chunk): matmul(*ones, unit=units.ideal("fp16", "fp16", order=order, chunk=chunk)).item()
        for order, chunk in (("sequential", 0), ("sequential", 64), ("pairwise", 0))
    }
    assert results == {("sequential", 0): 2048.0, ("sequential", 64): 4096.0, ("pairwise", 0): 4096.0}


def test_no_products_leave_the_accumulator() -> None:
    c = np.array([[-0.0, 3.0]])
    for order in ("sequential", "pairwise"):
        got = matmul(np.ones((1, 0)), np.ones((0, 2)), c, unit=units.ideal("fp16", "fp16", order=order))
        assert_same_bits(got, c.astype(np.float32))


def test_impossible_units_are_refused() -> None:
    with pytest.raises(ValueError, match="accumulator is e4m3; a format with infinities within fp32 is needed"):
        units.ideal("fp16", "e4m3")
    with pytest.raises(ValueError, match="inputs are fp64 and fp64"):
        units.ideal("fp64", "fp32")
    with pytest.raises(ValueError, match="chunk is 4 and order 'pairwise'"):
        units.ideal(order="pairwise", chunk=4)
    with pytest.raises(ValueError, match="rounding is 'stochastic'"):
        units.ideal(rounding="stochastic")
    with pytest.raises(ValueError, match="order is 'random'"):
        units.ideal(order="random")
