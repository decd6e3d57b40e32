"""Format policies: which formats parameters, computations and outputs are in, as Keras and jmp write them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpsim.formats import BF16, FP16, FP32, FloatFormat, FormatLike, get_format
from mpsim.ops import UnitsLike
from mpsim.tensor import Settings, Tensor, settings, using

__all__ = ["FormatPolicy", "get_policy"]


@dataclass(frozen=True, slots=True)
class FormatPolicy:
    """Formats of parameters, of computation, and of outputs.

    Notes
    -----
    As a policy in force it casts every input of every operation to ``compute``, parameters too: what a Keras layer
    does. Normalisations compute their statistics in FP32 inside, whatever the format. As in jmp the ``cast_to``
    methods leave the rest to the caller.
    """

    params: FloatFormat
    compute: FloatFormat
    output: FloatFormat

    @property
    def scaler(self) -> str | None:
        """Name of the loss scaler that Keras adds: for FP16 computation with FP32 variables, else None."""
        return "keras" if (self.compute, self.params) == (FP16, FP32) else None

    def region(self, unit: UnitsLike | None = None) -> contextlib.AbstractContextManager[Settings]:
        """Return a context in which all operations run in ``compute``, and products in ``unit``."""
        return using(policy=self, unit=settings().unit if unit is None else unit)

    def cast_inputs(self, operation: str, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs in the format of computation; called by the engine."""
        return tuple(t.to(self.compute) for t in inputs)

    def cast_to_params(self, tree: Any) -> Any:
        """Return a tree of dicts, lists and tuples with each Tensor in the format of parameters."""
        return _cast(tree, self.params)

    def cast_to_compute(self, tree: Any) -> Any:
        """Return a tree with each Tensor in the format of computation."""
        return _cast(tree, self.compute)

    def cast_to_output(self, tree: Any) -> Any:
        """Return a tree with each Tensor in the format of outputs."""
        return _cast(tree, self.output)


def get_policy(text: FormatLike) -> FormatPolicy:
    """Return the policy that a string of Keras or jmp names.

    Parameters
    ----------
    text : FloatFormat or str
        One format for everything; ``"mixed_float16"`` or ``"mixed_bfloat16"`` (Keras); or
        ``"params=X,compute=Y,output=Z"``, also with p, c and o (jmp). There a missing compute follows params, a
        missing output follows compute, and missing params are FP32; ``half`` is FP16, as on a GPU, and ``full`` FP32.

    Raises
    ------
    ValueError
        The string is no policy, or a quantised one, which formats alone do not say.

    Examples
    --------
    >>> policy = get_policy("params=float32,compute=half")
    >>> policy.params.name, policy.compute.name, policy.output.name
    ('fp32', 'fp16', 'fp16')
    """
    if not isinstance(text, str):
        return FormatPolicy(*[get_format(text)] * 3)
    if text in _KERAS:
        return FormatPolicy(FP32, _KERAS[text], _KERAS[text])
    if "_from_" in text:
        raise ValueError(f"policy {text!r} quantises its layers; a policy of formats is {_EXAMPLES}")
    if "=" not in text:
        return FormatPolicy(*[_format(text, text)] * 3)
    return _jmp(text)


_KERAS = {"mixed_float16": FP16, "mixed_bfloat16": BF16}
_EXAMPLES = "'float16', 'mixed_float16', 'mixed_bfloat16' or 'params=float32,compute=half,output=half'"
_PARTS = {"p": "params", "c": "compute", "o": "output"}


def _jmp(text: str) -> FormatPolicy:
    given: dict[str, FloatFormat] = {}
    for part in text.split(","):
        key, _, name = (piece.strip() for piece in part.partition("="))
        key = _PARTS.get(key, key)
        if key not in _PARTS.values() or key in given:
            raise ValueError(f"policy {text!r} has part {part.strip()!r}; it takes params=, compute= and output= once")
        given[key] = _format(name, text)
    params = given.get("params", FP32)
    compute = given.get("compute", params)
    return FormatPolicy(params, compute, given.get("output", compute))


def _format(name: str, text: str) -> FloatFormat:
    try:
        return {"half": FP16, "full": FP32}.get(name) or get_format(name)
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}; a policy is {_EXAMPLES}") from None


def _cast(tree: Any, fmt: FloatFormat) -> Any:
    if isinstance(tree, Tensor):
        return tree.to(fmt)
    if isinstance(tree, Mapping):
        return {key: _cast(value, fmt) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [_cast(value, fmt) for value in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return tree
