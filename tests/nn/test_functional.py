from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mpsim
from bits import assert_same_bits
from mpsim import nn
from mpsim.formats import BF16, FP16, FP32, FP64, FloatFormat
from mpsim.gradcheck import gradcheck
from mpsim.nn import functional as F  # noqa: N812 - as with torch
from mpsim.rounding import round_to
from mpsim.stochastic import Draws
from mpsim.tensor import Tensor


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def leaf(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(normal(*shape, seed=seed), requires_grad=True)


# Derivatives, through layers.


LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(3, 2, rng=0), (4, 3)),
    "Conv1d": (lambda: nn.Conv1d(2, 4, 3, 2, 1, groups=2, rng=0), (2, 2, 6)),
    "Conv2d": (lambda: nn.Conv2d(2, 3, 2, rng=0), (1, 2, 3, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (3, 4)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (3, 4)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3, track_running_stats=False), (4, 3)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2, track_running_stats=False), (2, 2, 2, 2)),
    "RNN": (lambda: nn.RNN(2, 3, 2, rng=0), (3, 2, 2)),
    "LSTM": (lambda: nn.LSTM(2, 3, rng=0), (3, 2, 2)),
    "GRU": (lambda: nn.GRU(2, 2, bidirectional=True, rng=0), (3, 1, 2)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(4, 2, rng=0), (3, 1, 4)),
    "TransformerBlock": (lambda: nn.TransformerBlock(4, 2, 5, 0.0, "gelu", rng=0), (3, 1, 4)),
    "Softmax": (lambda: nn.Softmax(1), (2, 3)),
    "LogSoftmax": (lambda: nn.LogSoftmax(1), (2, 3)),
    "GELU": (lambda: nn.GELU("tanh"), (5,)),
    "SiLU": (nn.SiLU, (5,)),
    "Sigmoid": (nn.Sigmoid, (5,)),
    "Softplus": (lambda: nn.Softplus(2.0), (5,)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (2, 4)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2, 1), (1, 3, 4)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), (2, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2, padding=1), (1, 3, 4)),
    "Flatten": (nn.Flatten, (2, 3, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_a_layer_agree_with_differences_in_binary64(name: str):
    make, shape = LAYERS[name]
    layer = make().to("fp64")

    assert gradcheck(lambda x, *_: output(layer, x), leaf(*shape), *layer.parameters())


def output(layer: Any, x: Tensor) -> Any:
    y = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
    return y[0] if isinstance(y, tuple) else y


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("fmt", [FP16, BF16], ids=str)
def test_a_layer_runs_in_low_precision(name: str, fmt: FloatFormat):
    make, shape = LAYERS[name]
    layer = make().to(fmt)
    x = Tensor(normal(*shape), requires_grad=True, format=fmt)
    y = output(layer, x)
    assert y.format is fmt
    assert_same_bits(y.data, round_to(y.data, fmt))
    y.sum().backward()
    for p in (x, *layer.parameters()):
        assert p.grad is not None
        assert p.grad.format is fmt


LOSSES: dict[str, Any] = {
    "MSELoss": nn.MSELoss(),
    "HuberLoss": nn.HuberLoss(delta=0.5),
    "BCEWithLogitsLoss": nn.BCEWithLogitsLoss(pos_weight=np.array([2.0, 3.0, 0.5])),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_a_loss_agree_with_differences_for_both_inputs(name: str):
    assert gradcheck(LOSSES[name], leaf(2, 3), leaf(2, 3, seed=1))


def test_weights_of_binary_cross_entropy_have_no_rule():
    weight = Tensor([1.0], requires_grad=True)
    with pytest.raises(NotImplementedError, match="no rule for the gradient of 'pos_weight'"):
        F.binary_cross_entropy_with_logits(leaf(3), np.ones(3), pos_weight=weight).backward()


# Batch normalisation.


def test_running_statistics_move_by_the_momentum_toward_those_of_the_batch():
    layer = nn.BatchNorm1d(2, momentum=0.25, format="fp64")
    x = normal(5, 2) + 3
    layer(Tensor(x))
    np.testing.assert_allclose(layer.running_mean.data, 0.25 * x.mean(0), rtol=1e-14)
    np.testing.assert_allclose(layer.running_var.data, 0.75 + 0.25 * x.var(0, ddof=1), rtol=1e-14)
    assert layer.num_batches_tracked == 1
    before = layer.state_dict()
    layer.eval()(Tensor(x))
    for name, array in layer.state_dict().items():
        assert_same_bits(array, before[name])


def test_statistics_in_fp16_are_taken_in_fp32_and_rounded_once():
    layer = nn.BatchNorm1d(1, momentum=1.0, format="fp16")
    layer(Tensor(np.array([[60000.0], [-60000.0], [0.0], [100.0]]), format="fp16"))
    assert layer.running_mean.data.tolist() == [25.0]
    assert layer.running_var.data.tolist() == [np.inf]  # 2.4e9 is not in range, its square root would be
    assert layer.running_var.format is FP16


def test_a_normalisation_of_fp16_takes_parameters_in_fp32():
    x = Tensor(normal(4, 3), format="fp16")
    for layer in (nn.LayerNorm(3), nn.RMSNorm(3), nn.BatchNorm1d(3)):
        y = layer(x)
        assert y.format is FP16
        y.sum().backward()
        assert layer.weight.grad.format is FP32


# Dropout.


def test_dropout_is_a_function_of_seed_stream_and_position():
    x = Tensor(np.ones((40, 50)))
    a, b = F.dropout(x, 0.3, rng=5), F.dropout(x, 0.3, rng=Draws(seed=5))
    assert_same_bits(a.data, b.data)
    assert (a.data != F.dropout(x, 0.3, rng=Draws(seed=5, stream=1)).data).any()
    assert (a.data[:20] == F.dropout(x[:20], 0.3, rng=5).data).all()
    assert set(np.unique(a.data)) == {0.0, 1 / 0.7}
    # 2000 draws: the share that stays is 0.7 with a standard deviation of 0.0102.
    assert abs(np.count_nonzero(a.data) / 2000 - 0.7) < 5 * 0.0102


def test_dropout_drops_the_same_elements_of_the_gradient():
    x = Tensor(np.ones(100, np.float32), requires_grad=True)
    y = F.dropout(x, 0.5, rng=1)
    y.sum().backward()
    assert x.grad is not None
    assert_same_bits(x.grad.data, y.data)


def test_a_dropout_layer_draws_anew_in_each_call_and_does_nothing_in_evaluation():
    x = Tensor(np.ones(100, np.float32))
    layer, twin = nn.Dropout(0.5, rng=3), nn.Dropout(0.5, rng=3)
    first, second = layer(x), layer(x)
    assert (first.data != second.data).any()
    assert_same_bits(twin(x).data, first.data)
    assert_same_bits(twin(x).data, second.data)
    assert layer.eval()(x) is x
    assert (nn.Dropout(0.5)(x).data != nn.Dropout(0.5)(x).data).any()
    assert not F.dropout(x, 1.0, rng=0).data.any()


def test_dropout_of_attention_is_drawn_anew_and_absent_in_evaluation():
    layer, x = nn.MultiheadAttention(4, 2, dropout=0.5, rng=0), Tensor(normal(6, 1, 4), format="fp32")
    for need_weights in (True, False):
        a, b = (layer(x, x, x, need_weights=need_weights)[0].data for _ in range(2))
        assert (a != b).any()
    layer.eval()
    a, b = (layer(x, x, x)[0].data for _ in range(2))
    assert_same_bits(a, b)
    layer.train()
    layer.dropout = 0.0
    assert_same_bits(layer(x, x, x)[0].data, a)


# Attention.


def test_attention_with_and_without_weights_agrees_and_weights_add_up_to_one():
    layer, x = nn.MultiheadAttention(8, 2, format="fp64", rng=0), Tensor(normal(5, 3, 8))
    y, weights = layer(x, x, x, is_causal=True)
    z, none = layer(x, x, x, is_causal=True, need_weights=False)
    assert none is None
    np.testing.assert_allclose(y.data, z.data, rtol=1e-12, atol=1e-14)
    assert weights.shape == (3, 5, 5)
    np.testing.assert_allclose(weights.data.sum(-1), 1, rtol=1e-14)
    assert not np.triu(weights.data, 1).any()
    assert layer(x, x, x, average_attn_weights=False)[1].shape == (3, 2, 5, 5)


def test_attention_rounds_its_weights_for_the_second_product_alone():
    """In FP16, 1 + 2**-12 as a sum of weights would round; the sum is held in FP32."""
    q, k = Tensor([[1.0]], format="fp16"), Tensor([[0.0], [-8.3125]], format="fp16")
    v = Tensor([[1.0], [0.0]], format="fp16")
    small = np.exp(np.float64(-8.3125)).astype(np.float32)
    got = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    assert_same_bits(got.data, round_to(np.array([[1 / (1 + small)]], np.float32), "fp16"))
    assert got.item() < 1.0


# What is refused.

ONE = np.ones((2, 3))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "conv2d of a matrix": (
        lambda: F.conv2d(ONE, Tensor(np.ones((1, 1, 2, 2)))),
        ValueError,
        r"conv2d: input is \(2, 3\); it must have 4 dimensions, or 3 without batch",
    ),
    "conv2d with a matrix": (
        lambda: F.conv2d(ONE, Tensor(ONE)),
        ValueError,
        r"conv2d: weight is \(2, 3\); it must have 4 dimensions",
    ),
    "conv2d of other channels": (
        lambda: F.conv2d(np.ones((2, 3, 4, 4)), Tensor(np.ones((1, 2, 2, 2)))),
        ValueError,
        r"conv2d: input is \(2, 3, 4, 4\), weight is \(1, 2, 2, 2\); with groups=1 input needs 2 channels",
    ),
    "conv2d in groups that do not divide": (
        lambda: F.conv2d(np.ones((2, 3, 4, 4)), Tensor(np.ones((1, 2, 2, 2))), groups=2),
        ValueError,
        "conv2d: groups is 2; it must divide the 3 channels of input and 1 of weight",
    ),
    "conv2d without room": (
        lambda: F.conv2d(np.ones((2, 1, 4, 4)), Tensor(np.ones((1, 1, 3, 3))), dilation=2),
        ValueError,
        "conv2d: an input of size 4 with padding 0 has no room for a kernel that spans 5",
    ),
    "conv2d padded by a word": (
        lambda: F.conv2d(np.ones((2, 1, 4, 4)), Tensor(np.ones((1, 1, 3, 3))), padding="reflect"),
        ValueError,
        'conv2d: padding is \'reflect\'; it must be "valid", "same" or numbers',
    ),
    "conv2d same with strides": (
        lambda: F.conv2d(np.ones((2, 1, 4, 4)), Tensor(np.ones((1, 1, 3, 3))), stride=2, padding="same"),
        ValueError,
        'padding="same" is for stride 1',
    ),
    "conv1d with three strides": (
        lambda: F.conv1d(np.ones((2, 1, 4)), Tensor(np.ones((1, 1, 3))), stride=(1, 2, 3)),
        ValueError,
        r"conv1d: stride is \(1, 2, 3\); an integer of at least 1 is needed, or 1 of them",
    ),
    "Conv2d in groups that do not divide": (
        lambda: nn.Conv2d(3, 4, 3, groups=2),
        ValueError,
        "groups is 2; it must divide in_channels, 3, and out_channels, 4",
    ),
    "max_pool2d padded by more than half": (
        lambda: F.max_pool2d(np.ones((4, 4)), 2, padding=2),
        ValueError,
        "max_pool2d: padding is 2; it must be at most half of kernel_size, 2",
    ),
    "avg_pool2d of a vector": (
        lambda: F.avg_pool2d(np.ones(4), 2),
        ValueError,
        r"avg_pool2d: input is \(4,\); it needs at least 2 dimensions",
    ),
    "embedding of floats": (
        lambda: F.embedding(ONE, Tensor(ONE)),
        TypeError,
        "embedding: input has dtype float64; integers are needed",
    ),
    "embedding outside": (
        lambda: F.embedding([0, 2], Tensor(ONE)),
        IndexError,
        "embedding: input reaches from 0 to 2; it must be 0 to 1",
    ),
    "layer_norm of another shape": (
        lambda: F.layer_norm(ONE, 2),
        ValueError,
        r"layer_norm: input is \(2, 3\), normalized_shape \(2,\); input must end in it",
    ),
    "layer_norm with another weight": (
        lambda: F.layer_norm(ONE, 3, Tensor(np.ones(2))),
        ValueError,
        r"layer_norm: weight is \(2,\); normalized_shape, \(3,\), is needed",
    ),
    "batch_norm of one row": (
        lambda: nn.BatchNorm1d(3)(np.ones((1, 3))),
        ValueError,
        r"batch_norm: input is \(1, 3\); training needs more than 1 value for each channel",
    ),
    "batch_norm with other channels": (
        lambda: nn.BatchNorm1d(2)(ONE),
        ValueError,
        r"batch_norm: running_mean is \(2,\); \(3,\) is needed",
    ),
    "BatchNorm2d of a matrix": (
        lambda: nn.BatchNorm2d(3)(ONE),
        ValueError,
        r"BatchNorm2d: input is \(2, 3\); it must have 4 dimensions",
    ),
    "dropout with p above 1": (lambda: F.dropout(ONE, 1.5), ValueError, "dropout: p is 1.5; it must be from 0 to 1"),
    "gelu by another formula": (
        lambda: F.gelu(ONE, "fast"),
        ValueError,
        'gelu: approximate is \'fast\'; it must be "none" or "tanh"',
    ),
    "mse_loss of two shapes": (
        lambda: F.mse_loss(Tensor(ONE), np.ones(3)),
        ValueError,
        r"mse_loss: input is \(2, 3\), target is \(3,\); they must be equal",
    ),
    "a loss reduced otherwise": (
        lambda: nn.MSELoss("max")(Tensor(ONE), ONE),  # type: ignore[arg-type]
        ValueError,
        'mse_loss: reduction is \'max\'; it must be "mean", "sum" or "none"',
    ),
    "cross_entropy with other weights": (
        lambda: F.cross_entropy(Tensor(ONE), [0, 1], weight=np.ones(2)),
        ValueError,
        r"weight has shape \(2,\); \(3,\) is needed, one for each class",
    ),
    "attention of other sizes": (
        lambda: F.scaled_dot_product_attention(Tensor(ONE), Tensor(np.ones((2, 4))), Tensor(ONE)),
        ValueError,
        r"query is \(2, 3\), key is \(2, 4\); the last sizes must be equal",
    ),
    "attention masked twice": (
        lambda: F.scaled_dot_product_attention(Tensor(ONE), Tensor(ONE), Tensor(ONE), ONE[:, :2] > 0, is_causal=True),
        ValueError,
        "is_causal is a mask already; attn_mask must be None with it",
    ),
    "attention under another mask": (
        lambda: F.scaled_dot_product_attention(Tensor(ONE), Tensor(ONE), Tensor(ONE), np.ones(3)),
        ValueError,
        r"attn_mask is \(3,\); it must broadcast to \(2, 2\)",
    ),
    "heads that do not divide": (
        lambda: nn.MultiheadAttention(6, 4),
        ValueError,
        "embed_dim is 6, num_heads 4; the heads must divide it",
    ),
    "a recurrent layer of another width": (
        lambda: nn.LSTM(4, 2)(np.ones((5, 1, 3))),
        ValueError,
        r"LSTM: input is \(5, 1, 3\); \(time, batch, 4\) is needed",
    ),
    "a recurrent layer of no steps": (
        lambda: nn.GRU(4, 2)(np.ones((0, 1, 4))),
        ValueError,
        "GRU: .* at least one step in time is needed",
    ),
    "a state of another shape": (
        lambda: nn.RNN(4, 2)(np.ones((5, 1, 4)), Tensor(np.ones((1, 2, 2)))),
        ValueError,
        r"RNN: hx is \(1, 2, 2\); 1 of shape \(1, 1, 2\) needed",
    ),
    "gather of floats": (lambda: Tensor(ONE).gather(0, ONE), TypeError, "gather: index has dtype float64"),
    "gather outside": (
        lambda: Tensor(ONE).gather(1, [[3]]),
        IndexError,
        "gather: index reaches from 3 to 3; it must be 0 to 2",
    ),
    "gather with an index too wide": (
        lambda: Tensor(ONE).gather(0, np.zeros((1, 4), int)),
        ValueError,
        r"gather: index is \(1, 4\), the tensor \(2, 3\); it needs as many dimensions, none larger but dim=0",
    ),
    "scatter_add of less": (
        lambda: Tensor(ONE).scatter_add(0, np.zeros((2, 3), int), np.ones((1, 3))),
        ValueError,
        r"scatter_add: index is \(2, 3\), src \(1, 3\); src must be as large as index",
    ),
    "masked_fill with numbers": (
        lambda: Tensor(ONE).masked_fill(ONE, 0.0),
        TypeError,
        "masked_fill: mask has dtype float64; booleans are needed",
    ),
    "masked_fill with a larger mask": (
        lambda: Tensor(ONE).masked_fill(np.ones((2, 2, 3), bool), 0.0),
        ValueError,
        r"masked_fill: mask is \(2, 2, 3\); it must broadcast to \(2, 3\)",
    ),
    "clamp to nothing": (lambda: Tensor(ONE).clamp(), ValueError, "clamp: min and max are both None"),
    "split in other sizes": (
        lambda: Tensor(ONE).split([1, 1], 1),
        ValueError,
        r"split: the sizes \[1, 1\] add up to 2; dimension 1 has 3",
    ),
    "chunk of a dimension that is not there": (
        lambda: Tensor(ONE).chunk(2, 2),
        IndexError,
        "chunk: dim is 2; it must be -2 to 1",
    ),
    "cat of nothing": (lambda: mpsim.cat([]), ValueError, "cat: tensors is empty"),
    "cat of other shapes": (
        lambda: mpsim.cat([ONE, np.ones((2, 2))]),
        ValueError,
        r"cat: tensors have shapes \(2, 3\) and \(2, 2\); they may differ in dim=0 alone",
    ),
    "stack of other shapes": (
        lambda: mpsim.stack([ONE, np.ones((2, 2))]),
        ValueError,
        r"stack: tensors have shapes \(2, 3\) and \(2, 2\); they must be equal",
    ),
    "an index of floats": (lambda: Tensor(ONE)[[0.5]], TypeError, "index has a part of dtype float64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_argument_is_named_with_what_came_and_what_would_do(name: str):
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call()


def test_comparisons_give_arrays_of_booleans():
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    assert [(x > 2).tolist(), (x >= 2.0).tolist()] == [[False, False, True], [False, True, True]]
    assert [(x < x.detach()).tolist(), (x <= [1, 2, 4]).tolist()] == [[False] * 3, [True] * 3]
    assert x[x > 1].data.tolist() == [2.0, 3.0]


def test_a_number_on_the_left_of_where_keeps_the_format():
    x = Tensor([1.0, 2.0], requires_grad=True, format="fp16")
    y = mpsim.where([True, False], 0.1, x)
    assert y.format is FP16
    assert y.data.tolist() == round_to([0.1, 2.0], "fp16").tolist()


def test_an_embedding_starts_standard_normal_and_its_padding_at_zero():
    layer = nn.Embedding(400, 100, padding_idx=-1, format="fp64", rng=0)
    assert layer.weight.format is FP64
    assert not layer.weight.data[-1].any()
    assert abs(float(layer.weight.data[:-1].std()) - 1) < 0.02  # 40000 numbers know it to 0.35 %
    layer(np.array([399, 0])).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.data.sum(1).tolist() == [100.0, *[0.0] * 399]
