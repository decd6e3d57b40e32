"""The inner arithmetic of operations: every step rounded, and sums with an accumulator of their own."""

from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import Tensor, arithmetic, inner_arithmetic, matrix_unit, units
from mpsim.formats import BF16, FP16, FP32, FP64, FloatFormat, get_format
from mpsim.nn import functional
from mpsim.ops import TABLE
from mpsim.rounding import round_to
from mpsim.settings import settings
from mpsim.tensor import apply
from reference.operations import CASES, values
from reference.stepwise import Machine

FORMATS = ("fp16", "bf16", "e5m2")
MACHINES = [Machine(fmt) for fmt in FORMATS] + [
    Machine("fp16", "fp32"),
    Machine("bf16", "fp16"),
    Machine("fp16", order="pairwise"),
    Machine("fp16", "bf16", order="chunked", chunk=3),
    Machine("bf16", order="kahan"),
    Machine("fp32"),
]


def inside(machine: Machine) -> Any:
    return inner_arithmetic("rounded", machine.accumulator, machine.order, machine.chunk)


def numbers(fmt: str, *shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return Tensor(rng.normal(size=shape) * 2.0 ** rng.integers(-3, 3, shape), requires_grad=True, format=fmt)


def same(got: Tensor | None, want: Any) -> None:
    assert got is not None
    assert_same_bits(got.data, np.asarray(want, np.float32))


def rows(t: Tensor) -> Any:
    return t.data.astype(float).tolist()


@pytest.fixture(params=MACHINES, ids=str)
def machine(request: pytest.FixtureRequest) -> Machine:
    return request.param  # type: ignore[no-any-return]


def test_reductions_are_loops_of_rounded_steps(machine: Machine):
    x = numbers(machine.fmt, 5, 11)
    for name in ("sum", "mean", "var"):
        with inside(machine):
            got = apply(name, x, dim=1)
        same(got, [getattr(machine, "total" if name == "sum" else name)(row) for row in rows(x)])


def test_softmax_and_its_gradient_are_loops_of_rounded_steps(machine: Machine):
    x = numbers(machine.fmt, 4, 9)
    for name in ("softmax", "log_softmax"):
        with inside(machine):
            got = apply(name, x)
        same(got, [getattr(machine, name)(row) for row in rows(x)])
    with inside(machine):
        y = x.softmax()
    g = numbers(machine.fmt, 4, 9, seed=1)
    y.backward(g.detach())  # outside the block: backward goes by the arithmetic of the forward pass
    same(x.grad, [machine.softmax_vjp(*pair) for pair in zip(rows(g), rows(y), strict=True)])


def test_layer_norm_and_its_gradient_are_loops_of_rounded_steps(machine: Machine):
    x, g = numbers(machine.fmt, 4, 10), numbers(machine.fmt, 4, 10, seed=1)
    weight, bias = (numbers(machine.fmt, 10, seed=seed) for seed in (2, 3))
    with inside(machine):
        y = functional.layer_norm(x, 10, weight, bias)
    y.backward(g.detach())
    same(y, [machine.layer_norm(row, rows(weight), rows(bias)) for row in rows(x)])
    same(x.grad, [machine.layer_norm_vjp(grad, row, rows(weight)) for grad, row in zip(rows(g), rows(x), strict=True)])
    same(bias.grad, [machine.total(column) for column in g.data.T.astype(float).tolist()])


def test_a_loss_is_a_loop_of_rounded_steps(machine: Machine):
    x, target = numbers(machine.fmt, 13), numbers(machine.fmt, 13, seed=1)
    with inside(machine):
        loss = functional.mse_loss(x, target)
    same(loss, machine.mse_loss(rows(x), rows(target)))


def test_the_mean_of_negative_log_probabilities_is_a_loop_of_rounded_steps(machine: Machine):
    x, labels = numbers(machine.fmt, 7, 4), np.array([0, 3, 1, 1, 2, 0, 3])
    with inside(machine):
        loss = functional.nll_loss(x, labels)
    terms = [-row[label] for row, label in zip(rows(x), labels, strict=True)]
    same(loss, machine.div(machine.total(terms), 7))


def test_arithmetic_and_functions_are_single_steps(machine: Machine):
    a, b = numbers(machine.fmt, 40), numbers(machine.fmt, 40, seed=1)
    with inside(machine):
        results = {name: apply(name, a, b) for name in ("add", "sub", "mul", "div")}
        hyperbolic = a.tanh()
    for name, got in results.items():
        same(got, [getattr(machine, name)(x, y) for x, y in zip(rows(a), rows(b), strict=True)])
    same(hyperbolic, [machine.of(np.tanh, x) for x in rows(a)])
    hyperbolic.backward(b.detach())
    same(a.grad, [machine.tanh_vjp(*pair) for pair in zip(rows(b), rows(hyperbolic), strict=True)])


def test_constants_are_rounded_too():
    with inner_arithmetic("rounded"):
        assert (Tensor([3.0], format="fp16") * 0.1).item() == float(arithmetic.mul(3.0, 0.1, "fp16")) != 0.3
        ones = Tensor(np.ones(2051), format="fp16")
        assert (ones.sum().item(), ones.mean().item()) == (2048.0, 2044 / 2048)  # 2051 is a tie, and goes to 2052


def test_windows_and_padding_add_up_by_rounded_steps():
    machine = Machine("bf16")
    x = numbers("bf16", 1, 1, 4, 4)
    with inside(machine):
        y = functional.avg_pool2d(x, 3, stride=2, padding=1)
    padded = np.pad(x.data[0, 0], 1).astype(float)
    want = []
    for row, column in ((0, 0), (0, 2), (2, 0), (2, 2)):
        total = 0.0
        for v in padded[row : row + 3, column : column + 3].reshape(-1):
            total = machine.add(total, v)
        want.append(machine.div(total, 9))
    same(y, np.reshape(want, (1, 1, 2, 2)))


def test_gradients_that_meet_at_one_place_are_added_one_after_another():
    machine = Machine("e5m2")
    table, index = numbers("e5m2", 3, 2), np.array([[0, 2, 2], [2, 0, 2]])
    with inside(machine):
        y = functional.embedding(index, table)
    g = numbers("e5m2", 2, 3, 2, seed=1)
    y.backward(g.detach())
    want = np.zeros((3, 2))
    for place, grads in zip(index.reshape(-1), g.data.reshape(-1, 2).astype(float), strict=True):
        want[place] = [machine.add(total, grad) for total, grad in zip(want[place], grads, strict=True)]
    same(table.grad, want)


def test_the_accumulator_alone_leaves_steps_in_fp32():
    x = numbers("fp16", 6, 50)
    with inner_arithmetic(accumulator="fp16", order="pairwise"):
        got = x.mean(1)
    totals = arithmetic.sum(x.data, "fp16", order="pairwise")
    same(got, round_to(totals / np.float32(50), "fp16"))
    fp32 = Tensor(np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32))
    with inner_arithmetic(accumulator="bf16"):
        same(fp32.sum(1), arithmetic.sum(fp32.data, "bf16"))
        same((fp32 * 0.1), fp32.data * np.float32(0.1))


def test_several_dimensions_are_summed_as_one_with_the_last_running_fastest():
    x = numbers("fp16", 3, 4, 5)
    with inner_arithmetic(accumulator="e5m2"):
        got, all_of_it = x.sum((0, 2)), x.sum()
    terms = x.data.transpose(1, 0, 2).reshape(4, 15)
    same(got, arithmetic.sum(terms, "e5m2"))
    same(all_of_it, arithmetic.sum(x.data.reshape(-1), "e5m2"))


# Products.


def test_products_are_those_of_the_unit_rounded_before_the_bias_is_added():
    x, weight, bias = (Tensor(v, format="fp16") for v in ([[2048.0, 1.0]], [[1.0, 1.0]], [1.0]))
    assert apply("linear", x, weight, bias).item() == 2050.0
    with inner_arithmetic("rounded"):
        assert apply("linear", x, weight, bias).item() == 2048.0


@pytest.mark.parametrize(("unit", "out"), [("ideal", "fp16"), ("v100", "fp16"), ("amx", "fp32")])
def test_products_accumulate_in_the_format_where_the_unit_can(unit: str, out: str):
    fmt = "bf16" if unit == "amx" else "fp16"
    a, b = numbers(fmt, 6, 40), numbers(fmt, 40, 5)
    with inner_arithmetic("rounded"), matrix_unit(unit):
        got = a @ b
    from mpsim.matmul import matmul

    same(got, round_to(matmul(a.data, b.data, unit=units.get(unit, inputs=fmt, out=out)), fmt))


# All operations.

ALL_CASES = [
    pytest.param(name, shapes, options, id=f"{name}-{shapes}-{'-'.join(options)}")
    for name, cases in CASES.items()
    for shapes, options in cases
    if name != "cast"
]


@pytest.mark.parametrize(("name", "shapes", "options"), ALL_CASES)
def test_every_operation_runs_in_rounded_steps(name: str, shapes: Any, options: dict[str, Any]):
    inputs = [Tensor(x, requires_grad=True, format=BF16) for x in values(name, shapes)]
    with inner_arithmetic("rounded"):
        y = apply(name, *inputs, **options)
    want = apply(name, *inputs, **options)
    if TABLE[name].exact:
        assert_same_bits(y.data, want.data)
    y.backward(np.ones(y.shape))
    for array in (y.data, *(x.grad.data for x in inputs if x.grad is not None)):
        assert type(array) is np.ndarray
        assert_same_bits(array, round_to(array, BF16))
    # A few roundings of numbers of order 1, none of which cancel: within a few units of 2**-8.
    np.testing.assert_allclose(y.data, want.data, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("accumulator", [None, "fp16"])
@pytest.mark.parametrize("fmt", [FP64, FP32], ids=str)
def test_wide_formats_differ_in_their_sums_at_most(fmt: FloatFormat, accumulator: str | None):
    x = Tensor(np.random.default_rng(0).normal(size=(3, 4)), format=fmt)
    with inner_arithmetic("rounded", accumulator):
        got = functional.gelu(x * 3.0 / 7.0 - 1.0)
    assert_same_bits(got.data, functional.gelu(x * 3.0 / 7.0 - 1.0).data)


def test_fp64_computes_as_ever():
    ones = Tensor([1.0] * 4096, format="fp64")
    with inner_arithmetic("rounded", "fp16"):
        assert ones.sum().item() == 4096
        assert functional.softmax(ones, -1).data[0] == 1 / 4096


def test_the_sum_of_class_weights_goes_by_the_accumulator():
    logits = Tensor(np.zeros((4096, 2)), format="fp16")
    weight = np.array([1.0, 1.0], np.float32)
    with inner_arithmetic(accumulator="fp16"):
        loss = functional.nll_loss(logits - 1.0, np.zeros(4096, int), weight=weight)
    assert loss.item() == 1  # both sums stop at 2048


def test_axes_are_those_of_numpy():
    x = Tensor(np.arange(12.0).reshape(4, 3), format="fp16")
    with inner_arithmetic(accumulator="fp32"):
        for wrong in (5, -4, (1, 1)):
            with pytest.raises(ValueError, match="axis"):
                x.sum(wrong)
        assert x.sum(np.int64(1)).data.tolist() == x.sum(-1).data.tolist() == [3, 12, 21, 30]
        assert x.sum((0, 1)).item() == x.sum().item() == 66
        assert Tensor(2.0, format="fp16").sum(0).item() == 2


# The switch.


def test_the_switch_holds_for_its_block_and_nests():
    assert not settings().inner.rounded
    with inner_arithmetic("rounded", "fp32", "chunked", 64):
        inner = settings().inner
        assert (inner.rounded, inner.accumulator, inner.order, inner.chunk) == (True, FP32, "chunked", 64)
        with inner_arithmetic(accumulator=FP16):
            assert (settings().inner.rounded, settings().inner.accumulator) == (False, get_format("fp16"))
        assert settings().inner == inner
    assert settings().inner.accumulator is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"intermediate": "every"}, 'intermediate is \'every\'; it must be "fp32" or "rounded"'),
        ({"accumulator": "fp17"}, "fp16"),
        ({"accumulator": "fp64"}, "fp64 has 64 bits"),
        ({"accumulator": "fp16", "order": "pairwis"}, "did you mean 'pairwise'"),
        ({"accumulator": "fp16", "order": "chunked"}, "chunk is None"),
        ({"order": "pairwise"}, "order is 'pairwise'; sums in an order of your own need an accumulator"),
    ],
    ids=str,
)
def test_what_cannot_work_is_an_error_at_once(arguments: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        inner_arithmetic(**arguments)
