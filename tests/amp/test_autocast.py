import gc
import weakref
from typing import Any

import numpy as np
import pytest

import mpsim
from bits import assert_same_bits
from mpsim import amp, nn, no_grad
from mpsim.amp.op_lists import OP_LISTS
from mpsim.formats import BF16, FP16, FP32, FP64
from mpsim.observe import Record, observe
from mpsim.ops import TABLE
from mpsim.rounding import round_to
from mpsim.tensor import Tensor, apply, matrix_unit, settings
from reference.operations import CASES, values


def leaf(data: Any, fmt: str = "fp32") -> Tensor:
    return Tensor(data, requires_grad=True, format=fmt)


def casts_of_weights(record: Record) -> int:
    return record.counters("weight", producers={"cast"}).elements


@pytest.fixture
def layer() -> nn.Linear:
    return nn.Linear(2, 2, bias=False, rng=0)


X = np.array([[1.0, 2.0]], np.float32)

# Which operation runs in which format.


CUDA = OP_LISTS["cuda"]


def known(ops: str, *treatments: str) -> set[str]:
    """Return the operations of the table on some lists."""
    return {name for name in TABLE if OP_LISTS[ops].of(name) in treatments}


def test_the_lists_are_those_of_their_systems_as_far_as_the_operations_go():
    products, losses = {"matmul", "linear", "conv2d"}, {"nll_loss", "mse_loss", "huber_loss"}
    losses.add("binary_cross_entropy_with_logits")
    attention, softmaxes = {"scaled_dot_product_attention"}, {"softmax", "log_softmax"}
    assert known("cuda", "low") == products | attention
    assert known("cuda", "fp32") == {"exp", "log", "pow", "rsqrt", "softplus", "layer_norm", "rms_norm"} | losses
    assert known("cuda", "fp32 result") == {"sum"} | softmaxes
    assert known("cuda", "promote") == {"scatter_add"}
    assert known("cpu", "low") == products | attention
    assert known("cpu", "fp32") == losses
    assert known("cpu", "promote") == {"cat"}
    assert known("apex-o1", "low") == products
    assert known("apex-o1", "fp32") == {"exp", "log", "pow", "sum", "var", "gelu", "layer_norm"} | softmaxes | losses
    assert known("apex-o1", "widest") == {"add", "sub", "mul", "div", "cat"}
    assert "binary_cross_entropy" in OP_LISTS["cuda"].listed("refused") & OP_LISTS["apex-o1"].listed("refused")


@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize("inputs", ["fp32", "fp16", "bf16", "fp64"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "cast"])
def test_an_operation_runs_in_the_format_of_its_list(name: str, inputs: str, low: str):
    shapes, options = CASES[name][0]
    given = [Tensor(x, format=inputs) for x in values(name, shapes)]
    if CUDA.of(name) == "promote" and inputs not in ("fp32", "fp64", low):
        with amp.autocast(low), pytest.raises(RuntimeError, match=f"an input is in {inputs}"):
            apply(name, *given, **options)
        return
    with amp.autocast(low):
        result = apply(name, *given, **options)
    if inputs == "fp64":
        want = "fp64"
    elif CUDA.of(name) == "low":
        want = low
    elif CUDA.of(name) in ("fp32", "fp32 result"):
        want = "fp32"
    else:
        want = inputs
    assert result.format.name == want


def test_other_operations_promote_as_outside():
    with amp.autocast("fp16"):
        assert (Tensor([1.0], format="fp16") + Tensor([1.0])).format is FP32
        assert (Tensor([1.0], format="fp16") + Tensor([1.0], format="bf16")).format is FP32


def test_inputs_of_another_low_format_are_cast_to_that_of_the_region():
    with amp.autocast("fp16"):
        assert (Tensor(np.eye(2), format="bf16") @ Tensor(np.eye(2), format="fp16")).format is FP16


def test_the_bias_is_cast_with_the_weight():
    layer = nn.Linear(2, 1, rng=0)
    layer.load_state_dict({"weight": np.ones((1, 2)), "bias": np.array([2.0**-30])})
    with amp.autocast("fp16"):
        assert layer(np.zeros((1, 2), np.float32)).data.tolist() == [[0.0]]


# Gradients.


def test_leaf_gradients_are_fp32_and_activation_gradients_low(layer: nn.Linear):
    with amp.autocast("fp16"):
        y = layer(X)
        y.retain_grad()
        loss = y.sum()
    assert (y.format, loss.format) == (FP16, FP32)
    loss.backward()
    assert y.grad is not None
    assert layer.weight.grad is not None
    assert (y.grad.format, layer.weight.grad.format) == (FP16, FP32)


def test_backward_outside_the_region_uses_the_unit_of_the_forward_pass():
    # Aligned to 2**24, the terms keep bits down to 2, 1 and 1/2.
    columns, ones = np.array([[2.0**12, 2.0**12, 1.0, 0.5]]), np.array([[2.0**12, -(2.0**12), 1.0, 1.0]])
    for unit, want in (("v100", 0.0), ("a100", 1.0), ("h100", 1.5)):
        x, w = leaf([[1.0]]), leaf(columns.T)
        with amp.autocast("fp16", unit=unit):
            y = apply("linear", x, w)
        assert settings().unit == "native"
        y.backward(ones)
        assert x.grad is not None
        assert x.grad.data[0, 0] == want


def test_the_gradient_of_two_uses_is_summed_in_the_low_format_of_the_one_cast(layer: nn.Linear):
    with amp.autocast("fp16"):
        y = layer(X) + layer(X)
    y.backward([[2048.0, 1.0]])
    assert layer.weight.grad is not None
    assert layer.weight.grad.data.tolist() == [[4096.0, 8192.0], [2.0, 4.0]]


# The cache.


def test_a_weight_is_cast_once_per_region(layer: nn.Linear):
    with observe() as record:
        for _ in range(2):
            with amp.autocast("fp16"):
                layer(X)
                layer(X)
    assert casts_of_weights(record) == 2 * layer.weight.size


def test_without_cache_a_weight_is_cast_at_each_use_with_the_same_results(layer: nn.Linear):
    with observe() as record, amp.autocast("fp16", cache=False):
        y = layer(X) + layer(X)
    assert casts_of_weights(record) == 2 * layer.weight.size
    with amp.autocast("fp16"):
        assert_same_bits(y.data, (layer(X) + layer(X)).data)


def test_a_cast_lives_no_longer_than_its_region(layer: nn.Linear):
    region = amp.autocast("fp16")
    with region:
        y = layer(X)
    assert y._node is not None
    cast = weakref.ref(y._node.inputs[1])
    assert cast().format is FP16
    del y
    gc.collect()
    assert cast() is None


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_weight_changed_between_regions_is_seen(layer: nn.Linear, outer_first: bool):
    """Also by a region object that was used inside another before, as a decorated forward is."""
    region = amp.autocast("fp16")
    if outer_first:
        with amp.autocast("fp16"), region:
            layer(X)
    else:
        with region, amp.autocast("fp16"):
            layer(X)
    layer.load_state_dict({"weight": np.full((2, 2), 8.0)})
    with region:
        assert layer(X).data.tolist() == [[24.0, 24.0]]


def test_casts_made_without_grad_are_not_kept(layer: nn.Linear):
    with amp.autocast("fp16"):
        with no_grad():
            layer(X)
        y = layer(X).sum()
    y.backward()
    assert layer.weight.grad is not None


def test_casts_made_with_grad_give_no_gradient_under_no_grad(layer: nn.Linear):
    with amp.autocast("fp16"):
        layer(X)
        with no_grad():
            assert not layer(X).requires_grad


def test_only_fp32_leaves_that_require_grad_are_kept(layer: nn.Linear):
    constant, activation, low = Tensor(np.eye(2, dtype=np.float32)), layer.weight * 1.0, leaf(np.eye(2), "bf16")
    for weight in (constant, activation, low):
        with observe({"activation", "weight"}) as record, amp.autocast("fp16"):
            for _ in range(2):
                apply("linear", Tensor(X, format="fp16"), weight)
        assert record.counters(producers={"cast"}).elements == 2 * weight.size


def test_a_dead_weights_cast_is_not_taken_for_that_of_a_new_one():
    with amp.autocast("fp16"):
        for value in range(50):  # objects that come and go at one address
            weight = leaf([[float(value)]])
            assert apply("linear", Tensor([[1.0]]), weight).item() == value


# Nesting.


def test_a_nested_region_of_the_same_format_shares_the_casts(layer: nn.Linear):
    with observe() as record, amp.autocast("fp16"):
        layer(X)
        with amp.autocast("fp16"):
            layer(X)
        layer(X)
    assert casts_of_weights(record) == layer.weight.size


def test_a_nested_region_may_change_format_and_unit(layer: nn.Linear):
    with amp.autocast("bf16", unit="a100"):
        assert layer(X).format is BF16
        with amp.autocast("fp16", unit="v100"):
            assert layer(X).format is FP16
            assert settings().unit == "v100"
        assert layer(X).format is BF16
        assert settings().unit == "a100"


def test_a_disabled_region_runs_operations_as_given(layer: nn.Linear):
    with amp.autocast("fp16", unit="v100"):
        h = layer(X)
        with amp.autocast("fp16", enabled=False):
            assert layer(X).format is FP32
            with pytest.raises(ValueError, match="linear: the inputs are in fp16, fp32"):
                layer(h)  # as in torch, nothing is promoted here
            assert h.exp().format is FP16
            assert settings().unit == "v100"
            with amp.autocast("bf16", unit="a100"):
                assert layer(X).format is BF16
        assert layer(X).format is FP16


def test_a_region_without_a_unit_keeps_the_one_in_force():
    with matrix_unit("v100"), amp.autocast("fp16"):
        assert settings().unit == "v100"
        with amp.autocast("fp16", unit="a100"), amp.autocast("fp16"):
            assert settings().unit == "a100"
    with amp.autocast("fp16"):
        assert settings().unit == "native"


def test_a_unit_that_cannot_take_the_format_is_an_error_at_once():
    with pytest.raises(ValueError, match="v100 has no instruction for inputs bf16"):
        amp.autocast("bf16", unit="v100")
    with pytest.raises(ValueError, match="unknown unit"):
        amp.autocast("fp16", unit="v1000")


def test_float64_data_is_refused_rather_than_run_in_fp64(layer: nn.Linear):
    with amp.autocast("fp16"), pytest.raises(ValueError, match=r"linear: the inputs are in fp64, fp16.*\.to"):
        layer(Tensor(X, format="fp64"))


def test_a_region_object_may_be_entered_again_while_it_is_in_force(layer: nn.Linear):
    region = amp.autocast("fp16")
    with observe() as record, region:
        layer(X)
        with region:
            layer(X)
        assert layer(X).format is FP16
    assert casts_of_weights(record) == layer.weight.size
    assert layer(X).format is FP32
    assert settings().policy is None


def test_a_region_object_entered_again_inside_another_keeps_its_casts(layer: nn.Linear):
    region = amp.autocast("fp16")
    with observe() as record, region:
        layer(X)
        with amp.autocast("bf16"), region:
            layer(X)
        layer(X)
    # Once for the outer entry, once for the inner one: between them lies a region of another format.
    assert record.counters("weight", producers={"cast"}, fmt="fp16").elements == 2 * layer.weight.size


def test_settings_are_as_before_after_an_exception(layer: nn.Linear):
    before = settings()
    with pytest.raises(KeyError), amp.autocast("fp16", unit="v100"), amp.autocast("bf16"):
        raise KeyError
    assert settings() == before
    assert layer(X).format is FP32


def test_a_region_is_a_decorator(layer: nn.Linear):
    @amp.autocast("fp16", unit="v100")
    def forward(depth: int) -> Tensor:
        return forward(depth - 1) if depth else layer(X)

    for depth in (0, 1, 0):
        assert forward(depth).format is FP16
    assert layer(X).format is FP32


# Arguments.


def test_an_unknown_format_is_refused_at_once():
    with pytest.raises(ValueError, match="fp16"):
        amp.autocast("fp61")


def test_a_unit_that_does_not_take_the_format_is_an_error_that_lists_what_it_takes(layer: nn.Linear):
    with pytest.raises(ValueError, match="v100 has no instruction for inputs bf16"), amp.autocast("bf16", unit="v100"):
        layer(X)


def test_results_equal_casts_written_by_hand(layer: nn.Linear):
    with amp.autocast("fp16", unit="a100"):
        y = layer(X)
        loss = nn.functional.cross_entropy(y, [1])
    want = mpsim.matmul(X, layer.weight.data.T, unit="a100")
    assert_same_bits(y.data, round_to(want, "fp16"))
    assert_same_bits(loss.data, nn.functional.cross_entropy(Tensor(y.data), [1]).data)
    assert loss.format is FP32


def test_fp64_inputs_are_left_alone():
    with amp.autocast("fp16"):
        assert (Tensor(np.eye(2)) @ Tensor(np.eye(2))).format is FP64


def test_a_region_may_have_a_unit_for_each_product():
    # Aligned to 2**24, the terms keep bits down to 2, 1 and 1/2.
    columns, ones = [[2.0**12, 2.0**12, 1.0, 0.5]], [[2.0**12, -(2.0**12), 1.0, 1.0]]
    x, weight = leaf([[1.0]]), leaf(np.transpose(columns))
    with amp.autocast("fp16", unit=mpsim.Units(forward="v100", input_gradient="a100", weight_gradient="h100")):
        assert apply("linear", leaf(columns), leaf(ones)).item() == 0.0
        y = apply("linear", x, weight)
    y.backward(ones)
    assert x.grad is not None
    assert x.grad.item() == 1.0
    with pytest.raises(ValueError, match="v100 has no instruction for inputs bf16"):
        amp.autocast("bf16", unit=mpsim.Units(forward="a100", input_gradient="a100", weight_gradient="v100"))


def test_a_transformer_block_in_a_region_normalises_in_fp32_and_multiplies_in_the_low_format():
    block, x = nn.TransformerBlock(8, 2, 16, 0.0, "gelu", rng=0), leaf(np.random.default_rng(0).normal(size=(3, 2, 8)))
    with observe() as record, amp.autocast("bf16"):
        y = block(x)
    assert y.format is FP32
    for fmt, name in (("fp32", "layer_norm"), ("bf16", "linear"), ("bf16", "scaled_dot_product_attention")):
        assert record.counters("activation", producers={name}).elements > 0
        assert record.counters("activation", producers={name}, fmt=fmt).elements == (
            record.counters("activation", producers={name}).elements
        )
    y.sum().backward()
    assert all(p.grad is not None and p.grad.format is FP32 for p in block.parameters())


# Lists.


def test_on_the_cpus_lists_softmax_and_normalisation_stay_low():
    x, weight = Tensor(np.eye(2), format="bf16"), leaf(np.eye(2))
    with amp.autocast("bf16", ops="cpu"):
        assert x.softmax(-1).format is x.exp().format is x.sum().format is BF16
        assert nn.functional.layer_norm(x, 2).format is BF16
        assert (x @ weight).format is BF16
        assert mpsim.cat([x, weight]).format is FP32
        assert nn.functional.mse_loss(x, x).format is FP32
        with pytest.raises(RuntimeError, match="cat: an input is in fp16"):
            mpsim.cat([x, Tensor(np.eye(2), format="fp16")])


def test_on_apexs_lists_additions_take_the_widest_format_of_any_tensor():
    x, number = Tensor([1.0], format="fp16"), Tensor(1.0)
    with amp.autocast("fp16"):
        assert (x + number).format is FP16
    with amp.autocast("fp16", ops="apex-o1"):
        assert (x + number).format is FP32
        assert (x + x).format is FP16
        assert nn.functional.gelu(x).format is FP32


def test_a_table_of_ones_own():
    x = Tensor([1.0])
    with amp.autocast("fp16", ops={"exp": "low", "log": "refused"}):
        assert x.exp().format is FP16
        assert x.sum().format is FP32
        with pytest.raises(RuntimeError, match="log is unsafe"):
            x.log()
    with pytest.raises(ValueError, match=r"treatment of \w+ is 'lwo': did you mean 'low'"):
        amp.autocast("fp16", ops={"exp": "lwo"})
    with pytest.raises(ValueError, match="did you mean 'cuda'"):
        amp.autocast("fp16", ops="cudda")


# What is recorded.


def test_the_formats_that_operations_used_are_recorded(layer: nn.Linear):
    region = amp.autocast("fp16")
    with region:
        for _ in range(2):
            (layer(X) + 1.0).exp()
        with amp.autocast("bf16"):
            layer(X)
    assert dict(region.used.counts) == {
        ("linear", ("fp32", "fp32"), "fp16"): 2,
        ("add", ("fp16", "fp16"), "fp16"): 2,
        ("exp", ("fp16",), "fp32"): 2,
    }
    assert str(region.used) == (
        "linear  fp32, fp32 -> fp16  2\nadd     fp16, fp16 -> fp16  2\nexp     fp16 -> fp32        2"
    )


def test_a_stale_cast_is_used_as_in_torch_and_noticed(layer: nn.Linear):
    region = amp.autocast("fp16")
    with region:
        before = layer(X)
        assert not region.notices
        layer.weight.data = layer.weight.data * 2
        assert_same_bits(layer(X).data, before.data)
    assert [str(notice.kind) for notice in region.notices] == ["stale cached cast"]
    with region:
        assert layer(X).data.tolist() == (2 * before.data).tolist()
    assert len(region.notices) == 1
