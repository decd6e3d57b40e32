import copy
import pickle
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import Tensor, no_grad
from mpsim.formats import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32, FloatFormat, get_format
from mpsim.rounding import round_to
from mpsim.tensor import apply, as_tensor, is_grad_enabled, matrix_unit, promote, settings, using


def leaf(data: Any, format: Any = None) -> Tensor:
    return Tensor(data, requires_grad=True, format=format)


def grad(x: Tensor) -> np.ndarray:
    assert x.grad is not None
    return x.grad.data


# Construction.


@pytest.mark.parametrize(
    ("data", "fmt"),
    [
        (1.5, FP32),
        (3, FP32),
        (True, FP32),
        ([1.0, 2.0], FP32),
        ([[1, 2], [3, 4]], FP32),
        (np.array([1, 2]), FP32),
        (np.array([1.0], np.float32), FP32),
        (np.array([1.0]), FP64),
        (np.float64(1.0), FP64),
        (np.array([1.0], np.float16), FP16),
        (np.array([1.0], ml_dtypes.bfloat16), BF16),
        (np.array([1.0], ml_dtypes.float8_e4m3fn), E4M3),
        (np.array([1.0], ml_dtypes.float8_e5m2), E5M2),
    ],
    ids=repr,
)
def test_the_format_is_that_of_the_data_unless_given(data: Any, fmt: FloatFormat):
    assert Tensor(data).format is fmt
    assert Tensor(data, format="fp16").format is FP16


def test_a_tensor_of_a_tensor_is_a_rounded_copy_without_history():
    x = leaf([1.0, 2.0**-30], "fp32")
    y = Tensor(x * 1.0)
    assert (y.format, y.requires_grad, y.is_leaf) == (FP32, False, True)
    low = Tensor(x, format="fp16")
    assert low.data.tolist() == [1.0, 0.0]
    low.data[0] = 5.0
    assert x.data[0] == 1.0


@pytest.mark.parametrize("fmt", [FP16, BF16, E4M3, FP32, FP64, TF32, get_format("e5m10")], ids=str)
def test_the_data_are_values_of_the_format_rounded_once(fmt: FloatFormat):
    x = np.random.default_rng(0).normal(size=100) * 1e3
    got = Tensor(x, format=fmt)
    assert got.data.dtype == fmt.value_dtype
    assert_same_bits(got.data, round_to(x, fmt).astype(fmt.value_dtype))


def test_float64_is_not_rounded_by_way_of_fp32():
    # Just above the midpoint of two FP16 numbers; float32 would put it on the midpoint, and then to even.
    assert Tensor(np.array(1 + 2.0**-11 + 2.0**-40), format="fp16").item() == 1 + 2.0**-10


def test_the_tensor_has_its_own_copy_of_the_data():
    x = np.ones(2, np.float32)
    t = Tensor(x)
    x[0] = 9
    assert t.data.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("data", [["a"], [1j], np.array([object()])], ids=["text", "complex", "object"])
def test_data_that_are_not_real_numbers_are_a_type_error(data: Any):
    with pytest.raises(TypeError):
        Tensor(data)


def test_an_unknown_format_is_an_error_that_names_near_ones():
    with pytest.raises(ValueError, match="fp16"):
        Tensor(1.0, format="fp17")


def test_shape_and_size_describe_the_array():
    x = Tensor(np.zeros((2, 3)))
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)


@pytest.mark.parametrize(
    ("fmt", "count", "nbytes"), [("fp64", 3, 24), ("fp32", 3, 12), ("fp16", 3, 6), ("e4m3", 3, 3), ("e2m1", 3, 2)]
)
def test_nbytes_are_those_of_the_format_packed(fmt: str, count: int, nbytes: int):
    assert Tensor(np.zeros(count), format=fmt).nbytes == nbytes


def test_the_repr_shows_values_format_and_whether_grad_is_required():
    assert repr(leaf([1.0, 2.5], "fp16")) == "Tensor([1. , 2.5], format=fp16, requires_grad=True)"
    assert repr(Tensor(1)) == "Tensor(1., format=fp32)"


def test_numpy_shares_the_values_and_refuses_where_a_gradient_would_be_lost():
    x = Tensor([1.0])
    assert x.numpy() is x.data
    assert leaf([1.0]).detach().numpy().tolist() == [1.0]
    with pytest.raises(RuntimeError, match=r"detach\(\)"):
        leaf([1.0]).numpy()


def test_asarray_gives_the_values():
    x = Tensor([1.0, 2.0], format="fp16")
    assert_same_bits(np.asarray(x), np.array([1, 2], np.float32))
    assert np.asarray(x, np.float64).dtype == np.float64


def test_item_is_a_python_float_of_the_only_element():
    assert type(Tensor([[2.5]], format="bf16").item()) is float
    with pytest.raises(ValueError, match="size 1"):
        Tensor([1.0, 2.0]).item()


# Operands and promotion.


OPERATORS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("fmt", [FP16, BF16, FP32, FP64], ids=str)
def test_a_python_number_on_either_side_keeps_the_format_of_the_tensor(name: str, fmt: FloatFormat):
    f, x = OPERATORS[name], Tensor([3.0, 4.0], format=fmt)
    for number in (2, 2.0, True):
        for result, want in ((f(x, number), f(x.data, number)), (f(number, x), f(number, x.data))):
            assert result.format is fmt
            assert_same_bits(result.data, round_to(want, fmt).astype(fmt.value_dtype))


@pytest.mark.parametrize("array", [np.ones(2, np.float32), np.float32(1), np.ones((), np.float32)], ids=repr)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_array_on_the_left_meets_the_tensor_and_not_its_elements(name: str, array: Any):
    x = leaf([2.0, 4.0])
    y = OPERATORS[name](array, x)
    assert isinstance(y, Tensor)
    assert_same_bits(y.data, np.asarray(OPERATORS[name](array, x.data)))
    y.sum().backward()
    assert grad(x).shape == (2,)


def test_an_array_on_the_left_of_a_product_gives_a_tensor():
    x = leaf(np.arange(6, dtype=np.float32).reshape(3, 2))
    y = np.ones((4, 3), np.float32) @ x
    assert isinstance(y, Tensor)
    assert y.data.tolist() == [[6.0, 9.0]] * 4
    y.backward(np.ones((4, 2)))
    assert grad(x).tolist() == [[4.0, 4.0]] * 3


PROMOTION = [
    (FP16, FP16, FP16),
    (FP16, FP32, FP32),
    (BF16, FP32, FP32),
    (FP16, BF16, FP32),
    (E4M3, FP16, FP16),
    (E5M2, FP16, FP16),
    (E4M3, E5M2, FP32),
    (E4M3, BF16, BF16),
    (TF32, FP16, TF32),
    (TF32, BF16, TF32),
    (TF32, FP32, FP32),
    (FP32, FP64, FP64),
    (FP16, FP64, FP64),
    (FP32, get_format("e11m10"), FP64),
]


@pytest.mark.parametrize(("a", "b", "together"), PROMOTION, ids=str)
def test_formats_meet_in_the_smallest_of_these_that_holds_both(a: FloatFormat, b: FloatFormat, together: FloatFormat):
    for one, two in ((a, b), (b, a)):
        assert promote([Tensor([1.0], format=one), Tensor([1.0], format=two)]) is together
        assert (Tensor([1.0], format=one) + Tensor([1.0], format=two)).format is together


def test_a_tensor_without_dimensions_counts_only_among_its_like():
    vector, scalar = Tensor([1.0], format="fp16"), Tensor(1.0, format="fp64")
    assert (vector * scalar).format is FP16
    assert (scalar * vector).format is FP16
    assert (Tensor(1.0, format="fp16") * scalar).format is FP64
    assert (Tensor([1.0], format="bf16") * vector * scalar).format is FP32


def test_promoted_operands_are_cast_where_autograd_sees_it():
    low, wide = leaf([0.5], "fp16"), leaf([3.0])
    (low * wide).backward()
    assert low.grad is not None
    assert (low.grad.format, grad(low).tolist()) == (FP16, [3.0])
    assert wide.grad is not None
    assert (wide.grad.format, grad(wide).tolist()) == (FP32, [0.5])


def test_to_rounds_and_to_the_same_format_is_the_tensor_itself():
    x = leaf([1 + 2.0**-11, 1e-8, 1e6])
    assert x.to("float32") is x
    low = x.to("fp16")
    assert low.data.tolist() == [1.0, 0.0, np.inf]
    low.backward([1.0, 2.0**-24, 3.0])
    assert x.grad is not None
    assert x.grad.format is FP32
    assert grad(x).tolist() == [1.0, 2.0**-24, 3.0]


def test_as_tensor_leaves_a_tensor_alone():
    x = Tensor(1.0)
    assert as_tensor(x) is x
    assert as_tensor([1.0]).format is FP32


# Shapes.


@pytest.mark.parametrize(
    ("a", "b"),
    [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (5, 3, 2)), ((5, 2, 3), (3,)), ((4, 1, 2, 3), (5, 3, 2))],
)
def test_products_follow_the_shape_rules_of_numpy(a: tuple[int, ...], b: tuple[int, ...]):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=a), rng.normal(size=b)
    got = Tensor(x) @ Tensor(y)
    assert got.shape == (x @ y).shape
    np.testing.assert_allclose(got.data, x @ y, rtol=1e-14, atol=1e-15)  # three terms: a few units of 2**-53


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((2, 3), (4, 5), r"matmul: a is \(2, 3\), b is \(4, 5\); a.shape\[-1\] must equal b.shape\[-2\]"),
        ((2, 3), (4,), r"matmul: a is \(2, 3\), b is \(4,\); a.shape\[-1\] must equal b.shape\[-1\]"),
        ((), (4,), r"matmul: .*\(\).*\(4,\)"),
        ((4,), (), r"matmul: .*\(4,\).*\(\)"),
    ],
)
def test_products_of_shapes_that_do_not_fit_name_both(a: tuple[int, ...], b: tuple[int, ...], message: str):
    with pytest.raises(ValueError, match=message):
        Tensor(np.ones(a)) @ Tensor(np.ones(b))


def test_batches_that_do_not_broadcast_name_both_shapes():
    with pytest.raises(ValueError, match=r"\(2, 3, 4\).*\(5, 4, 6\)"):
        Tensor(np.ones((2, 3, 4)), format="fp16") @ Tensor(np.ones((5, 4, 6)), format="fp16")


def test_sums_of_shapes_that_do_not_broadcast_name_both():
    with pytest.raises(ValueError, match=r"\(2,3\) \(4,\)|\(2, 3\).*\(4,\)"):
        Tensor(np.ones((2, 3))) + Tensor(np.ones(4))


def test_reshape_takes_sizes_or_a_sequence():
    x = Tensor(np.arange(6.0))
    for shape in ((2, 3), (-1, 3)):
        assert x.reshape(*shape).shape == x.reshape(shape).shape == x.reshape(list(shape)).shape == (2, 3)
    with pytest.raises(ValueError, match="reshape"):
        x.reshape(4, 2)


def test_T_reverses_all_dimensions():
    x = np.arange(24.0).reshape(2, 3, 4)
    assert_same_bits(Tensor(x).T.data, x.T)


# Settings.


def test_no_grad_records_nothing_and_gives_leaves():
    x = leaf([1.0])
    assert is_grad_enabled()
    with no_grad():
        assert not is_grad_enabled()
        y = x * 2
    assert is_grad_enabled()
    assert y.is_leaf
    assert not y.requires_grad


def test_no_grad_works_as_a_decorator_more_than_once():
    @no_grad()
    def double(x: Tensor) -> Tensor:
        return x * 2

    for _ in range(2):
        assert not double(leaf([1.0])).requires_grad
    assert is_grad_enabled()


def test_settings_are_restored_after_an_exception_and_nest():
    before = settings()
    with no_grad(), matrix_unit("v100"):
        assert settings().unit == "v100"
        with matrix_unit("a100"):
            assert (settings().unit, settings().grad_enabled) == ("a100", False)
        assert (settings().unit, settings().grad_enabled) == ("v100", False)
    with pytest.raises(KeyError), no_grad(), matrix_unit("v100"):
        raise KeyError
    assert settings() == before
    with pytest.raises(TypeError), using(colour="red"):
        pass
    assert settings() == before


def test_settings_belong_to_a_thread():
    seen: list[bool] = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_an_unknown_operation_is_a_key_error():
    with pytest.raises(KeyError):
        apply("convolve", Tensor([1.0]))


def test_long_integers_are_rounded_once():
    assert Tensor(np.array([2**53 + 1, 2**53 + 3]), format="fp64").data.tolist() == [2**53, 2**53 + 4]
    assert Tensor(np.array([2**24 + 1, 2**62 + 2**38 + 1])).data.tolist() == [2**24, 2**62 + 2**39]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("fmt", ["fp64", "fp32", "fp16"])
def test_a_copied_tensor_computes_as_the_original(copied: Any, fmt: str):
    x = leaf([[1.0, 2.0]], fmt)
    y = copied(x)
    assert (y.format, y.requires_grad) == (x.format, True)
    with matrix_unit("v100"):
        assert_same_bits((y @ y.T).data, (x @ x.T).data)
    assert promote([x, y]) is x.format


def test_a_python_number_is_not_rounded_to_the_format_of_the_tensor():
    x = Tensor([1000.0], format="fp16")
    assert round_to(1e-8, FP16) == 0
    assert (x * 1e-8).data.tolist() == round_to([np.float32(1000) * np.float32(1e-8)], FP16).tolist() != [0.0]
    assert (x * 1e-8).format is FP16
    assert (1e-8 * x).data.tolist() == (x * 1e-8).data.tolist()


def test_transpose_exchanges_two_dimensions_and_permute_orders_them_all():
    x = Tensor(np.arange(24.0).reshape(2, 3, 4))
    assert x.transpose(0, 2).shape == (4, 3, 2)
    assert x.transpose(-1, 0).data.tolist() == x.data.swapaxes(0, 2).tolist()
    assert x.permute(1, 2, 0).data.tolist() == x.data.transpose(1, 2, 0).tolist()
    assert x.T.shape == (4, 3, 2)


def test_numpy_functions_do_not_cut_the_graph_in_silence():
    x = Tensor([1.0], requires_grad=True)
    with pytest.raises(TypeError):
        np.exp(x)
    with pytest.raises(RuntimeError, match="detach"):
        np.asarray(x)
    assert np.asarray(x.detach()).tolist() == [1.0]


def test_truth_and_number_of_a_tensor_are_those_of_its_element():
    assert not Tensor([0.0])
    assert Tensor(2.0)
    assert float(Tensor([2.5])) == 2.5
    with pytest.raises(ValueError, match="ambiguous"):
        bool(Tensor([1.0, 2.0]))


def test_relu_passes_the_gradient_of_a_nan():
    x = Tensor([np.nan, -1.0, 0.0, 1.0], requires_grad=True)
    x.relu().sum().backward()
    assert x.grad is not None
    assert x.grad.data.tolist() == [1.0, 0.0, 0.0, 1.0]
