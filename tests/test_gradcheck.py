import numpy as np
import pytest

from bits import assert_same_bits
from mpsim.gradcheck import gradcheck
from mpsim.tensor import Tensor


def test_a_right_gradient_passes():
    x = Tensor(np.linspace(-2, 2, 6).reshape(2, 3), requires_grad=True)
    assert gradcheck(lambda x: (x * x).sum(), x)


@pytest.mark.parametrize("factor", [0.0, 0.999, 1.001, -1.0, np.nan])
def test_a_wrong_gradient_raises(factor: float):
    x = Tensor(np.array([1.5, 2.5]), requires_grad=True)

    def wrong(x: Tensor) -> Tensor:
        right = x * x
        return right.detach() + (right - right.detach()) * factor

    with pytest.raises(AssertionError, match=r"gradcheck: input 0, element \(0,\)"):
        gradcheck(wrong, x)


def test_an_error_in_one_output_cannot_cancel_against_another():
    x = Tensor(np.array([1.0, 1.0]), requires_grad=True)

    def swapped(x: Tensor) -> Tensor:
        """Give each output the gradient of the other: the sum over both outputs is right."""
        reverse = Tensor(np.array([[0.0, 1.0], [1.0, 0.0]]))
        y = reverse @ x * 3.0
        return (x * 3.0).detach() + (y - y.detach())

    with pytest.raises(AssertionError):
        gradcheck(swapped, x)


def test_a_gradient_that_never_arrives_is_taken_for_zero():
    x, y = (Tensor(np.array([2.0]), requires_grad=True) for _ in range(2))
    assert gradcheck(lambda x, _: x * 3.0, x, y)
    with pytest.raises(AssertionError, match="input 1"):
        gradcheck(lambda x, y: x * 3.0 + y.detach(), x, y)


def test_only_inputs_that_require_grad_are_checked():
    x, constant = Tensor(np.array([2.0]), requires_grad=True), Tensor(np.array([3.0]))
    assert gradcheck(lambda x, c: x * c.detach(), x, constant)
    assert constant.grad is None


def test_the_inputs_keep_their_bits():
    values = np.random.default_rng(0).normal(size=(3, 2))
    x = Tensor(values, requires_grad=True)
    gradcheck(lambda x: x.tanh(), x)
    assert_same_bits(x.data, values)


def test_inputs_in_another_format_are_refused():
    with pytest.raises(ValueError, match="input 1 has format fp32; fp64 is needed"):
        gradcheck(lambda a, b: a + b, Tensor(np.ones(1), requires_grad=True), Tensor([1.0], requires_grad=True))


def test_inputs_of_which_none_requires_grad_are_refused():
    with pytest.raises(ValueError, match="no input requires grad"):
        gradcheck(lambda x: x, Tensor(np.ones(1)))
