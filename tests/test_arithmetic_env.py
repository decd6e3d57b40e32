"""The floating-point environment: defaults, counts, nesting, threads, raising."""

import threading

import numpy as np
import pytest

from mpsim import arithmetic
from mpsim.arithmetic import ExceptionCounts, Flags, env


def test_defaults_hold_inside_the_block_only():
    with env(rounding="up", overflow="saturate"):
        assert arithmetic.add(1.0, 2**-20, "fp16") == 1 + 2**-10
        assert arithmetic.add(65504.0, 65504.0, "fp16") == 65504.0
        assert arithmetic.add(1.0, 2**-20, "fp16", rounding="down") == 1.0
    assert arithmetic.add(1.0, 2**-20, "fp16") == 1.0


def test_blocks_inherit_what_they_do_not_set():
    with env(rounding="up"):
        with env(tininess="before"):
            assert arithmetic.add(1.0, 2**-20, "fp16") == 1 + 2**-10
        with env(rounding="down"):
            assert arithmetic.add(1.0, 2**-20, "fp16") == 1.0
        assert arithmetic.add(1.0, 2**-20, "fp16") == 1 + 2**-10


def test_every_exception_is_counted():
    with env() as flags:
        arithmetic.div([1.0, -1.0, 0.0], [0.0, 0.0, 0.0], "fp16")
        arithmetic.mul([6e4, 1e-7, 3.0], [6e4, 1e-7, 3.0], "fp16")
    assert (flags.divide_by_zero, flags.invalid, flags.overflow, flags.underflow, flags.inexact) == (2, 1, 1, 1, 2)
    assert flags.raised == Flags.INEXACT | Flags.UNDERFLOW | Flags.OVERFLOW | Flags.DIVIDE_BY_ZERO | Flags.INVALID
    flags.clear()
    assert flags == ExceptionCounts()
    assert flags.raised == Flags(0)


def test_counts_do_not_depend_on_how_the_work_is_split():
    x = np.random.default_rng(0).integers(0, 1 << 16, 50_000).astype(np.uint16)
    for operation in (arithmetic.add, arithmetic.div):
        with env() as flags:
            _, mask = operation(x, x[::-1].copy(), "fp16", codes=True, return_flags=True)
        for flag in Flags:
            assert getattr(flags, str(flag.name).lower()) == np.count_nonzero(mask & np.uint8(flag))


def test_exceptions_count_in_every_block_around_them():
    with env() as outer:
        with env() as inner:
            arithmetic.sqrt(-1.0, "fp16")
        arithmetic.sqrt(-1.0, "fp16")
    assert (outer.invalid, inner.invalid) == (2, 1)


def test_flushing_is_split_into_results_and_inputs():
    tiny = 2.0**-20
    for flush, total, product in ((True, 0, 0), ("ftz", 0, 0), ("daz", 0, 2**-19), (False, 2**-19, 2**-19)):
        with env(flush=flush):
            assert arithmetic.add(tiny, tiny, "fp16") == total
            assert arithmetic.mul(2**-9, 2**-10, "fp16") == product
    with env(flush=True), env(rounding="up"):
        assert arithmetic.add(tiny, tiny, "fp16") == 0
    with env(flush=True), env(flush=False):
        assert arithmetic.add(tiny, tiny, "fp16") == 2**-19


def test_tininess_decides_about_the_flag():
    """2**-14 - 2**-26 is tiny, but with 11 bits and unbounded exponent it would round to 2**-14, which is not."""
    for tininess, count in (("after", 0), ("before", 1)):
        with env(tininess=tininess) as flags:
            assert arithmetic.fma(-(2.0**-13), 2.0**-13, 2.0**-14, "fp16") == 2.0**-14
        assert (flags.underflow, flags.inexact) == (count, 1)


def test_a_raising_block_names_operation_count_and_place():
    x, y = np.ones((2, 3)), np.array([[1, 2, 4], [8, 16, 0]])
    x[1, 2] = 0
    with (
        env(raising={"invalid", "divide_by_zero"}) as flags,
        pytest.raises(FloatingPointError, match=r"div: invalid in 1 of 6 results, first at index \(1, 2\)"),
    ):
        arithmetic.div(x, y, "fp16")
    assert flags.invalid == 1
    out = np.empty(2, np.float32)
    with env(raising="divide_by_zero"), pytest.raises(FloatingPointError):
        arithmetic.div([1.0, 3.0], [0.0, 2.0], "fp16", out=out)
    assert out.tolist() == [np.inf, 1.5]
    with env(raising="overflow"), pytest.raises(FloatingPointError, match=r"mul: overflow in 1 of 1 results$"):
        arithmetic.mul(6e4, 6e4, "fp16")
    with env(raising="all"), env(raising=()):
        arithmetic.sqrt(-1.0, "fp16")
    with env(raising="all"), pytest.raises(FloatingPointError, match="dot: inexact in 1 of 1"):
        arithmetic.dot([1.0, 1.0], [2048.0, 1.0], "fp16")


def test_an_exception_that_nobody_asked_for_does_not_raise():
    with env(raising="invalid") as flags:
        arithmetic.div(1.0, 3.0, "fp16")
    assert flags.inexact == 1


def test_each_thread_has_its_own_environment():
    barrier = threading.Barrier(2)
    results: dict[str, tuple[float, int]] = {}

    def calculate(rounding: str) -> None:
        with env(rounding=rounding) as flags:
            barrier.wait()
            for _ in range(50):
                value = float(arithmetic.add(1.0, 2**-20, "fp16"))
            results[rounding] = value, flags.inexact

    threads = [threading.Thread(target=calculate, args=(rounding,)) for rounding in ("up", "down")]
    with env(rounding="up"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {"up": (1 + 2**-10, 50), "down": (1.0, 50)}


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="rounding is 'upwards'"), env(rounding="upwards"):
        pass
    with pytest.raises(ValueError, match="flush is 'both'"), env(flush="both"):
        pass
    with (
        pytest.raises(ValueError, match="raising has 'overflows'; the exceptions are inexact"),
        env(raising="overflows"),
    ):
        pass
