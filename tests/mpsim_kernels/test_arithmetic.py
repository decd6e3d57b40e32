"""The loops that work on blocks against the operations that they leave their special cases to."""

import itertools
from typing import Any

import numba
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.arithmetic import Settings
from mpsim.arithmetic._numbers import layout_for, target_for
from mpsim.formats import FloatFormat, get_format
from mpsim_kernels import arithmetic, arithmetic_fast, significands
from reference.rounding import MODES
from reference.samples import FORMATS, JIT

NOTHING = np.empty(0, np.int64)
LOOPS: dict[str, tuple[Any, int]] = {
    "add": (arithmetic_fast.make_fast(0), 2),
    "sub": (arithmetic_fast.make_fast(1), 2),
    "mul": (arithmetic_fast.make_fast(2), 2),
    "div": (arithmetic_fast.divide_fast_loop, 2),
    "fma": (arithmetic_fast.fused_fast_loop, 3),
    "sqrt": (arithmetic_fast.square_root_fast_loop, 1),
}


def whole(part: Any) -> Any:
    """Return a function that Python can call of a part of kernels."""
    return numba.njit(lambda *arguments: part(*arguments))


add, multiply, divide = whole(arithmetic.add), whole(arithmetic.multiply), whole(arithmetic.divide)
fused_multiply_add, square_root = whole(arithmetic.fused_multiply_add), whole(arithmetic.square_root)
layout_of, target_of = whole(arithmetic.layout_of), whole(arithmetic.target_of)
shift_right_jam = whole(significands.shift_right_jam)


def single(name: str, codes: tuple[Any, ...], layout: Any, target: Any) -> Any:
    match name:
        case "add" | "sub":
            return add(*codes, np.int64(name == "sub"), layout, target)
        case "mul":
            return multiply(*codes, layout, target)
        case "div":
            return divide(*codes, layout, target)
        case "fma":
            return fused_multiply_add(*codes, layout, target)
        case _:
            return square_root(*codes, layout, target)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize(
    "fmt", [*map(get_format, ("fp32", "fp16", "dlfloat16", "ue4m3", "e8m0")), FORMATS[-1]], ids=str
)
def test_blocks_give_what_single_operations_give(fmt: FloatFormat, name: str):
    loop, arguments = LOOPS[name]
    rng = np.random.default_rng(40)
    n = 600 if JIT else 40  # more than a block
    for mode, (tininess, flush) in itertools.product(MODES, (("after", False), ("before", False), ("after", True))):
        settings = Settings().updated(rounding=mode, tininess=tininess, flush_subnormals=flush)
        numbers = layout_for(fmt, flush), target_for(fmt, settings)
        x = rng.integers(0, 1 << fmt.bits, (arguments, n)).astype(np.uint32)
        codes, flags, counts = np.empty(n, np.uint32), np.empty(n, np.uint8), np.zeros(5, np.int64)
        loop(*x, codes, flags, counts, *numbers)
        layout, target = layout_of(numbers[0]), target_of(numbers[1])
        want = [single(name, tuple(map(np.int64, operands)), layout, target) for operands in x.T]
        assert_same_bits(codes, np.array([code for code, _ in want], np.uint32), [str(operands) for operands in x.T])
        assert_same_bits(flags, np.array([flag for _, flag in want], np.uint8), [str(operands) for operands in x.T])
        assert counts.tolist() == [np.count_nonzero(flags & np.uint8(1 << bit)) for bit in range(5)]


def test_one_operand_may_stand_for_many():
    fmt = get_format("fp16")
    numbers = layout_for(fmt, False), target_for(fmt, Settings())
    x = np.arange(0x3C00, 0x3C00 + 1000, dtype=np.uint16)
    one, many = np.array([0x3E01], np.uint16), np.full(1000, 0x3E01, np.uint16)
    for name, (loop, arguments) in LOOPS.items():
        if arguments == 1:
            continue
        got, want = np.empty_like(x), np.empty_like(x)
        loop(x, *[one] * (arguments - 1), got, np.empty(0, np.uint8), NOTHING, *numbers)
        loop(x, *[many] * (arguments - 1), want, np.empty(0, np.uint8), NOTHING, *numbers)
        assert_same_bits(got, want, [name] * x.size)


def test_jamming_keeps_the_order_against_every_midpoint():
    for sig, k in itertools.product(range(200), range(6)):
        jammed = int(shift_right_jam(np.int64(sig), np.int64(k)))
        for twice_midpoint in range(0, 60, 2):  # multiples of 2 in jammed bits
            exact = (sig > twice_midpoint << k) - (sig < twice_midpoint << k)
            assert exact == (jammed > twice_midpoint) - (jammed < twice_midpoint)
    assert shift_right_jam(np.int64(5), np.int64(200)) == 1
    assert shift_right_jam(np.int64(0), np.int64(200)) == 0
