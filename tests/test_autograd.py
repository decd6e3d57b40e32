import dataclasses
import gc
import weakref
from typing import Any

import numpy as np
import pytest

from mpsim import Tensor
from mpsim.ops import TABLE
from mpsim.tensor import apply
from reference.operations import CASES, values


def leaf(data: Any, format: Any = None) -> Tensor:
    return Tensor(data, requires_grad=True, format=format)


def grad(x: Tensor) -> np.ndarray:
    assert x.grad is not None
    return x.grad.data


def test_leaves_are_made_by_the_user_and_results_that_need_no_gradient():
    x = leaf([1.0])
    assert x.is_leaf
    assert not (x * 2).is_leaf
    assert (x * 2).requires_grad
    constant = Tensor([1.0]) * 2
    assert constant.is_leaf
    assert not constant.requires_grad


def test_gradients_add_up_over_calls_until_they_are_forgotten():
    x = leaf([1.0, 2.0])
    (x * 3).sum().backward()
    (x * x).sum().backward()
    assert grad(x).tolist() == [5.0, 7.0]
    x.grad = None
    (x * 3).sum().backward()
    assert grad(x).tolist() == [3.0, 3.0]


def test_accumulated_gradients_are_rounded_to_the_format_of_the_leaf():
    x = leaf([1.0], "fp16")
    for _ in range(2):
        (x * 2048.0).sum().backward()
    x.backward([1.0])
    assert grad(x).tolist() == [4096.0]  # 4097 is not an FP16 number


def test_only_leaves_get_a_gradient_unless_asked():
    x = leaf([2.0])
    y = x * 3
    z = y * y
    z.backward()
    assert y.grad is None
    assert z.grad is None
    assert grad(x).tolist() == [36.0]


def test_retain_grad_keeps_the_whole_gradient_of_an_intermediate_result():
    x = leaf([2.0])
    y = x * 3
    y.retain_grad()
    (y * y + y).sum().backward()
    assert grad(y).tolist() == [13.0]
    with pytest.raises(RuntimeError, match="retain_grad"):
        Tensor([1.0]).retain_grad()


def test_a_tensor_used_twice_gets_the_sum_of_both_gradients():
    x = leaf([3.0])
    (x + x).backward()
    assert grad(x).tolist() == [2.0]
    x.grad = None
    (x * x).backward()
    assert grad(x).tolist() == [6.0]


def test_a_diamond_is_walked_once():
    x = leaf([1.0])
    y = x * 1.0
    for _ in range(60):  # 2**60 paths
        y = y + y
    y.backward()
    assert grad(x).tolist() == [2.0**60]


def test_a_node_waits_for_all_its_users_though_their_distances_differ():
    x = leaf([1.0])
    y = x * 2
    ((((y * 3) * 5) * 7) + y).backward()
    assert grad(x).tolist() == [2 * (105 + 1)]


def test_the_sum_of_gradients_of_low_precision_is_rounded():
    x = leaf([1.0])
    y = x.to("fp16")
    (y * 2048.0 + y * 1.0).sum().backward()
    assert grad(x).tolist() == [2048.0]  # 2049 is not an FP16 number


@pytest.mark.parametrize("length", [10_000])
def test_a_deep_graph_needs_no_recursion(length: int):
    x = leaf([0.0])
    y = x
    for _ in range(length):
        y = y + 1.0
    y.backward()
    assert y.item() == length
    assert grad(x).tolist() == [1.0]


def test_a_deep_graph_is_freed_without_recursion():
    x = leaf([0.0])
    y = x
    for _ in range(100_000):
        y = -y
    last = weakref.ref(y)
    del y
    gc.collect()
    assert last() is None


def test_a_second_backward_needs_a_retained_graph():
    x = leaf([3.0])
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert grad(x).tolist() == [12.0]
    with pytest.raises(RuntimeError, match=r"freed at operation 'mul'.*retain_graph=True"):
        y.backward()
    assert grad(x).tolist() == [12.0]


def test_a_graph_freed_in_part_by_another_loss_is_an_error_that_changes_no_gradient():
    x = leaf([3.0])
    trunk = x * x
    (trunk * 2).backward()
    other = trunk * 5
    with pytest.raises(RuntimeError, match="freed"):
        other.backward()
    assert grad(x).tolist() == [12.0]


def test_backward_frees_what_only_the_graph_held():
    x = leaf(np.ones(3))
    y = x * 2
    held = weakref.ref(y)
    z = y.sum()
    del y
    z.backward()
    gc.collect()
    assert held() is None


def test_backward_of_several_elements_needs_a_gradient_of_the_same_shape():
    y = leaf([1.0, 2.0]) * 2
    with pytest.raises(RuntimeError, match=r"shape \(2,\); only one element"):
        y.backward()
    with pytest.raises(ValueError, match=r"gradient has shape \(3,\); \(2,\) is needed"):
        y.backward([1.0, 2.0, 3.0])


def test_backward_without_anything_to_differentiate_is_an_error():
    with pytest.raises(RuntimeError, match="does not require grad"):
        Tensor([1.0]).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        (leaf([1.0]).detach() * 2).backward()


def test_backward_of_a_leaf_gives_it_the_gradient():
    x = leaf([1.0, 2.0], "fp16")
    x.backward([1 + 2.0**-11, 5.0])
    assert grad(x).tolist() == [1.0, 5.0]  # in the format of the tensor


def test_every_gradient_has_the_format_of_its_tensor():
    x = leaf([[1.0, 2.0]])
    low = x.to("fp16")
    wide = low.to("fp64")
    for t in (low, wide):
        t.retain_grad()
    (wide * wide).sum().backward()
    for t in (x, low, wide):
        assert t.grad is not None
        assert t.grad.format is t.format
        assert t.grad.data.dtype == t.format.value_dtype
        assert not t.grad.requires_grad


def test_backward_uses_the_values_of_the_forward_pass():
    """Also where the leaf was given new ones in between, as by an optimizer's step between two losses."""
    x = leaf([2.0])
    y = x * x
    x.data = np.array([100.0], np.float32)
    y.backward()
    assert grad(x).tolist() == [4.0]


def test_whether_gradients_are_wanted_can_be_changed_for_leaves_alone():
    x = Tensor([2.0]).requires_grad_()
    y = x * 2.0
    y.requires_grad = True
    with pytest.raises(RuntimeError, match=r"only be changed for leaf tensors: detach\(\)"):
        y.requires_grad = False
    x.requires_grad = False
    assert (x * 2.0).is_leaf
    y.backward()  # as recorded
    assert grad(x).tolist() == [2.0]


def test_the_gradients_of_one_pass_are_added_before_those_of_others():
    # 2048 + 1 + 1 is 2048 in FP16 from the left, and 2050 where the ones come first.
    x = leaf([1.0], "fp16")
    (x * 2048.0).backward()
    (x * 1.0 + x * 1.0).backward()
    assert grad(x).tolist() == [2050.0]


def test_gradients_of_one_tensor_are_added_from_its_last_use_to_its_first():
    # As torch's engine does, which runs the youngest operation first.
    x = leaf([1.0], "fp16")
    first, second, third = x * 2048.0, x * 1.0, x * 1.0
    (first + (second + third)).backward()
    assert grad(x).tolist() == [2050.0]
    x.grad = None
    first, second, third = x * 1.0, x * 1.0, x * 2048.0
    (first + (second + third)).backward()
    assert grad(x).tolist() == [2048.0]


# Parts of tensors.


def test_slices_give_their_gradients_to_the_whole():
    x = leaf(np.zeros((3, 4), np.float32))
    (x[0] * 2.0 + x[1, 1:3].sum() + x[:, ::2].sum() + x[-1]).sum().backward()
    want = np.zeros((3, 4))
    want[0] += 2
    want[1, 1:3] += 4
    want[:, ::2] += 4
    want[-1] += 1
    assert grad(x).tolist() == want.tolist()


def test_slices_and_other_uses_share_no_gradient():
    """Parts are added in place; a sum passes the same gradient to both of its terms, which must not change by that."""
    a, b = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    x, y = a * 1.0, b * 1.0
    part = x[:1].sum() * 10.0  # its gradient comes last
    (part + ((x + y) * Tensor([2.0, 3.0])).sum()).backward()
    assert grad(a).tolist() == [12.0, 3.0]
    assert grad(b).tolist() == [2.0, 3.0]


def test_sums_of_parts_are_rounded():
    x = leaf([1.0, 1.0], "fp16")
    a, b = x[0] * 1.0, x[0] * 2048.0
    (a + b).backward()
    assert grad(x).tolist() == [2048.0, 0.0]


# Hooks.


def test_a_hook_sees_the_whole_gradient_once_and_may_replace_it():
    x = leaf([2.0, 3.0])
    seen: list[list[float]] = []
    x.register_hook(lambda g: seen.append(g.data.tolist()))
    x.register_hook(lambda g: g * 10.0)
    x.register_hook(lambda g: seen.append(g.data.tolist()))
    (x * x).sum().backward()
    assert seen == [[4.0, 6.0], [40.0, 60.0]]
    assert grad(x).tolist() == [40.0, 60.0]


def test_a_hook_of_an_intermediate_result_changes_what_goes_on_and_outlives_the_tensor():
    x = leaf([2.0])
    y = x * 3.0
    handle = y.register_hook(lambda g: g * 100.0)
    y.register_hook(lambda g: g + 1.0)
    y.retain_grad()
    z = y * 1.0 + y * 4.0
    z.backward(retain_graph=True)
    assert grad(y).tolist() == [501.0]  # after the hooks, as in torch
    assert grad(x).tolist() == [1503.0]
    handle.remove()
    handle.remove()
    del y
    x.grad = None
    z.backward()
    assert grad(x).tolist() == [18.0]


def test_what_a_hook_returns_is_rounded_and_checked():
    x = leaf([1.0], "fp16")
    handle = x.register_hook(lambda g: Tensor([1 + 2.0**-20]))
    (x * 1.0).backward()
    assert grad(x).tolist() == [1.0]
    handle.remove()
    handle = x.register_hook(lambda g: Tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"gradient of shape \(2,\); \(1,\) is needed"):
        (x * 1.0).backward()
    handle.remove()
    x.register_hook(lambda g: 1.0)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="returned float; a Tensor or None"):
        (x * 1.0).backward()


def test_a_hook_needs_a_gradient_to_come():
    with pytest.raises(RuntimeError, match="register_hook: the tensor does not require grad"):
        Tensor([1.0]).register_hook(lambda g: None)


# Rules.


def test_a_missing_rule_names_operation_and_argument(monkeypatch: pytest.MonkeyPatch):
    def half_known(call: Any, g: Any, y: Any, input: Any, other: Any) -> Any:
        return g, None

    x, y = leaf([1.0]), leaf([2.0])
    for vjp, argument, inputs in ((None, "input", (x, y)), (half_known, "other", (x, y))):
        monkeypatch.setitem(TABLE, "add", dataclasses.replace(TABLE["add"], vjp=vjp))
        with pytest.raises(NotImplementedError, match=rf"backward: add has no rule for the gradient of '{argument}'"):
            (inputs[0] + inputs[1]).backward()
    (x + y.detach()).backward()  # the gradient that is missing is not wanted
    assert grad(x).tolist() == [1.0]


@pytest.mark.parametrize("name", [name for name in TABLE if name != "cast"])
def test_the_graph_holds_the_values_that_a_rule_reads_and_no_others(name: str):
    shapes, options = CASES[name][0]
    inputs = [Tensor(x, requires_grad=True) * 1.0 for x in values(name, shapes)]
    y = apply(name, *inputs, **options)
    operation = TABLE[name]
    assert y._node is not None
    for i, (t, array) in enumerate(zip(inputs, y._node.arrays, strict=True)):
        assert array is not None
        assert (array is t.data) == operation.is_read(i)
        assert (array.shape, array.dtype) == (t.shape, t.data.dtype)
    known = operation.reads is None or set(operation.reads) <= {*map(operation.argument, range(9)), "output"}
    assert known, "reads names an argument that the operation does not have"


def test_what_no_rule_reads_is_freed_at_once():
    x = leaf(np.ones(4))
    y = x * 2.0
    array = weakref.ref(y.data)
    z = (y + 1.0).sum()
    del y
    assert array() is None
    z.backward()
    assert grad(x).tolist() == [2.0] * 4


def test_arrays_are_freed_as_the_walk_passes():
    x = leaf(np.full(3, 0.5))
    kept = []
    y = x
    for _ in range(5):
        y = y.tanh()
        kept.append(weakref.ref(y.data))
    alive: list[int] = []
    x.register_hook(lambda g: alive.append(sum(ref() is not None for ref in kept)))
    loss = y.sum()
    del y
    loss.backward()
    assert alive == [1]  # of the operation whose rule is running
    assert [ref() for ref in kept] == [None] * 5


def test_detach_shares_the_values_and_cuts_the_history():
    x = leaf([2.0])
    y = x * 3
    assert y.detach().data is y.data
    (y * y.detach()).backward()
    assert grad(x).tolist() == [18.0]


def test_gradients_are_not_shared_between_tensors():
    a, b = leaf([1.0, 1.0]), leaf([1.0, 1.0])
    (a + b).sum().backward()
    grad(a)[0] = 7.0
    assert grad(b).tolist() == [1.0, 1.0]
