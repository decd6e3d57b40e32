"""Which operation autocast runs in which format: the lists of several systems, as data.

The lists name operations that mpsim does not have too; they take effect when it gets them. Operations on no list run in
the formats of their inputs, with ordinary promotion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from mpsim.formats import FloatFormat
from mpsim.modes import unknown

__all__ = ["OP_LISTS", "FormatsUsed", "OpLists", "OpListsLike", "Treatment", "get_op_lists"]

Treatment: TypeAlias = Literal["low", "fp32", "fp32 result", "promote", "widest", "refused"]
"""What becomes of an operation: inputs cast to the region's format; to FP32; the result asked for in FP32 (the same,
where the first input is not FP64); FP32 if an input is, else the region's format; FP32 if an input is, else unchanged;
an error."""


@dataclass(frozen=True, slots=True)
class OpLists:
    """One system's lists: the treatment of each operation by name.

    Examples
    --------
    >>> OpLists("mine", {"linear": "low", "softmax": "fp32"}).of("linear")
    'low'
    """

    name: str
    treatments: Mapping[str, Treatment]

    def __post_init__(self) -> None:
        for operation, treatment in self.treatments.items():
            if treatment not in get_args(Treatment):
                raise unknown(f"ops: treatment of {operation}", treatment, get_args(Treatment))

    def of(self, operation: str) -> Treatment | None:
        """Return what becomes of an operation; None for one on no list."""
        return self.treatments.get(operation)

    def listed(self, treatment: Treatment) -> frozenset[str]:
        """Return the names of all operations on one list."""
        return frozenset(name for name, its in self.treatments.items() if its == treatment)


OpListsLike: TypeAlias = "OpLists | Mapping[str, Treatment] | str"


def _lists(name: str, lists: dict[Treatment, str]) -> OpLists:
    return OpLists(name, {operation: treatment for treatment, names in lists.items() for operation in names.split()})


_CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc"
_LOSSES = (
    "nll_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss binary_cross_entropy_with_logits poisson_nll_loss "
    "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss multi_margin_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss"
)

_CUDA = _lists(
    "cuda",
    {
        "low": f"{_CONVOLUTIONS} linear matmul mm mv bmm addmm addmv addr addbmm baddbmm einsum chain_matmul multi_dot "
        "vecdot prelu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention",
        "fp32": f"exp expm1 log log10 log2 log1p pow rsqrt reciprocal acos asin cosh sinh tan erfinv softplus "
        "layer_norm rms_norm group_norm nuclear_norm frobenius_norm cosine_similarity cdist pdist dist renorm "
        f"logsumexp {_LOSSES} upsample interpolate",
        "fp32 result": "softmax log_softmax sum prod cumsum cumprod norm vector_norm matrix_norm",
        "promote": "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put scatter_add tensordot",
        "refused": "binary_cross_entropy",
    },
)

_CPU = _lists(
    "cpu",
    {
        "low": f"{_CONVOLUTIONS} linear matmul mm bmm addmm addbmm baddbmm vecdot prelu scaled_dot_product_attention "
        "native_multi_head_attention mkldnn_rnn_layer",
        "fp32": f"{_LOSSES} cross_entropy_loss binary_cross_entropy ctc_loss prod cdist fft ifft rfft irfft stft "
        "cholesky inverse svd qr eig solve lstsq quantile nanquantile grid_sampler avg_pool3d adaptive_avg_pool3d "
        "adaptive_max_pool3d polar trace",
        "promote": "cat stack index_copy",
    },
)

_APEX_O1 = _lists(
    "apex-o1",
    {
        "low": f"{_CONVOLUTIONS} linear matmul mm mv bmm addmm addmv addr addbmm baddbmm chain_matmul prelu",
        "fp32": "exp expm1 log log10 log2 log1p pow sum prod norm std var softmax log_softmax gelu layer_norm "
        f"group_norm {_LOSSES}",
        "widest": "add sub mul div eq ne lt le gt ge cat stack",
        "refused": "binary_cross_entropy",
    },
)

OP_LISTS: dict[str, OpLists] = {lists.name: lists for lists in (_CUDA, _CPU, _APEX_O1)}
"""The lists by name: torch 2.14's for CUDA and for CPU, where softmax, sums and normalisations stay in the low format,
and those that apex.amp patches at O1."""


def get_op_lists(ops: OpListsLike) -> OpLists:
    """Return lists by name, or made of a mapping from operations to treatments.

    Raises
    ------
    ValueError
        There are no lists of that name, or no such treatment.
    """
    if isinstance(ops, OpLists):
        return ops
    if isinstance(ops, Mapping):
        return OpLists("own", dict(ops))
    if ops not in OP_LISTS:
        raise ValueError(f"{unknown('ops', ops, OP_LISTS)}, or a table of your own")
    return OP_LISTS[ops]


@dataclass(slots=True)
class FormatsUsed:
    """How often each operation ran in which formats.

    Examples
    --------
    >>> from mpsim.formats import FP16, FP32
    >>> used = FormatsUsed()
    >>> used.add("linear", (FP16, FP32), FP16)
    >>> print(used)
    linear  fp16, fp32 -> fp16  1
    """

    counts: Counter[tuple[str, tuple[str, ...], str]] = field(default_factory=Counter)
    """By operation, formats that came in, and format in which it ran."""

    def add(self, operation: str, given: tuple[FloatFormat, ...], run: FloatFormat) -> None:
        """Count one operation."""
        self.counts[operation, tuple(fmt.name for fmt in given), run.name] += 1

    def of(self, operation: str) -> frozenset[str]:
        """Return the formats in which an operation ran."""
        return frozenset(run for name, _, run in self.counts if name == operation)

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        return iter(self.counts)

    def __str__(self) -> str:
        rows = [(name, f"{', '.join(given)} -> {run}", str(n)) for (name, given, run), n in self.counts.items()]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        return "\n".join(f"{name:{widths[0]}}  {formats:{widths[1]}}  {n}" for name, formats, n in rows)
