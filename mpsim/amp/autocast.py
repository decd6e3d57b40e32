"""Run each operation in the format that mixed precision gives it."""

from __future__ import annotations

import contextlib

from mpsim import units
from mpsim.formats import FP32, FP64, FormatLike, get_format
from mpsim.ops import Units, UnitsLike
from mpsim.tensor import Tensor, is_grad_enabled, settings, using

__all__ = ["FP32_OPS", "LOW_PRECISION_OPS", "autocast"]

LOW_PRECISION_OPS = frozenset({"matmul", "linear", "conv2d", "scaled_dot_product_attention"})
"""Operations run in the low format: those that matrix units accelerate (torch's CUDA list)."""

FP32_OPS = frozenset(
    {
        *("exp", "log", "pow", "rsqrt", "softplus", "sum", "softmax", "log_softmax", "layer_norm", "rms_norm"),
        *("nll_loss", "mse_loss", "huber_loss", "binary_cross_entropy_with_logits"),
    }
)
"""Operations run in FP32: those that leave FP16's range or add up many terms (torch's CUDA list)."""


class autocast(contextlib.ContextDecorator):  # noqa: N801 - torch's name
    """Context in which matrix products run in a low format and sensitive operations in FP32.

    Parameters
    ----------
    format : FloatFormat or name
        The low format.
    unit : MatrixUnit, name or Units, optional
        Matrix unit of the products, forward and backward, or one for each; "native" is NumPy's FP32 product. Without
        one the unit in force stays: that of an outer region or of `matrix_unit`, else "native".
    enabled : bool
        False runs a part of an autocast region in the formats of its inputs.
    cache : bool
        Cast each FP32 leaf that requires grad only once, until the outermost region ends.

    Notes
    -----
    The lists are those of torch.autocast on CUDA; other operations run in the formats of their inputs, promoted.
    FP64 inputs are left alone, and refused where they meet the low format. Casts are differentiable: the gradient of a
    leaf is in FP32, those of activations are in the low format. Call ``backward`` outside the region; it runs in the
    formats of the forward pass.

    Examples
    --------
    >>> from mpsim import nn
    >>> layer = nn.Linear(4, 2, rng=0)
    >>> with autocast("fp16"):
    ...     y = layer(Tensor([[1.0, 2.0, 3.0, 4.0]]))
    >>> y.format.name, layer.weight.format.name
    ('fp16', 'fp32')
    """

    def __init__(
        self,
        format: FormatLike = "fp16",
        unit: UnitsLike | None = None,
        enabled: bool = True,
        cache: bool = True,
    ) -> None:
        self.format = get_format(format)
        if unit is not None and enabled:
            for each in unit.each if isinstance(unit, Units) else (unit,):
                units.get(each, inputs=self.format)  # an unknown unit, or one without such inputs, is an error here
        self.unit = unit
        self.enabled = enabled
        self.cache = cache
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._entered: list[tuple[contextlib.AbstractContextManager[object], dict[int, tuple[Tensor, Tensor]]]] = []

    def __enter__(self) -> autocast:
        outer = settings().policy
        unit = settings().unit if self.unit is None or not self.enabled else self.unit
        region = using(policy=self if self.enabled else None, unit=unit)
        region.__enter__()
        self._entered.append((region, self._casts))
        # A nested region shares the casts of the one around it; they are forgotten when the outermost ends.
        if isinstance(outer, autocast) and self.cache and outer.cache and outer.format == self.format:
            self._casts = outer._casts
        else:
            self._casts = {}
        return self

    def __exit__(self, *error: object) -> None:
        region, self._casts = self._entered.pop()
        region.__exit__(*error)  # type: ignore[arg-type]

    def cast_inputs(self, operation: str, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs in the format that the operation is to run in."""
        if operation in LOW_PRECISION_OPS:
            return tuple(self._cast(t) for t in inputs)
        if operation in FP32_OPS:
            return tuple(t if t.format == FP64 else t.to(FP32) for t in inputs)
        return inputs

    def _cast(self, tensor: Tensor) -> Tensor:
        if tensor.format in (FP64, self.format):
            return tensor
        is_weight = tensor.requires_grad and tensor.is_leaf and tensor.format == FP32
        if not (self.cache and is_weight and is_grad_enabled()):
            return tensor.to(self.format)
        if id(tensor) not in self._casts:
            # The tensor is kept beside its cast: an id is only unique while its object lives.
            self._casts[id(tensor)] = (tensor, tensor.to(self.format))
        return self._casts[id(tensor)][1]
