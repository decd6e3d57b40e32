"""Units that no chip has, for teaching and experiments: one rounding, or a rounding at every step."""

from __future__ import annotations

from mpsim.formats import FP64, FormatLike, get_format
from mpsim.modes import Rounding
from mpsim.units.model import Family, InputsLike, MatrixUnit, Order

__all__ = ["IDEAL", "ideal"]


def ideal(
    inputs: InputsLike = "fp16",
    accumulator: FormatLike = "fp32",
    *,
    order: Order | str = Order.SEQUENTIAL,
    chunk: int = 0,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
) -> MatrixUnit:
    """Return a unit that multiplies exactly and rounds every partial sum to a format.

    Parameters
    ----------
    inputs : format or pair of formats
        Each of 26 significand bits or fewer, so that products are exact in float64.
    accumulator : format
        Of every partial sum and of the result; within the range of fp32.
    order : {"sequential", "pairwise"}
    chunk : int
        With ``"sequential"``: products are added in chunks of so many from zero, and the sums of chunks to the
        accumulator, as by Wang et al. (2018), "Training deep neural networks with 8-bit floating point numbers". 0: one
        chain from the accumulator.
    rounding : {"nearest-even", "toward-zero", "nearest-away", "up", "down", "to-odd"}
        Of each partial sum. ``"toward-zero"`` is a truncating accumulator.

    Returns
    -------
    MatrixUnit
        Of the family ``"rounded"``.

    Raises
    ------
    ValueError
        The accumulator does not fit float32, or an input does not fit.

    Examples
    --------
    >>> import mpsim
    >>> ones = [[1.0] * 4096], [[1.0]] * 4096
    >>> for chunk in (0, 64):
    ...     print(mpsim.matmul(*ones, unit=ideal("fp16", "fp16", chunk=chunk), out="fp16").item())
    2048.0
    4096.0
    """
    a, b = (get_format(fmt) for fmt in (inputs if isinstance(inputs, tuple) else (inputs, inputs)))
    out = get_format(accumulator)
    if out.p > 24 or out.emin < -126 or out.emax > 127 or out.inf_code is None:
        raise ValueError(f"accumulator is {out}; a format with infinities within fp32 is needed")
    if max(a.p, b.p) > 26 or FP64 in (a, b):
        raise ValueError(f"inputs are {a} and {b}; each must have 26 significand bits or fewer")
    order = Order.of(order, "order")
    if chunk < 0 or (chunk and order is not Order.SEQUENTIAL):
        raise ValueError(f"chunk is {chunk} and order {str(order)!r}; chunks are positive, and sequential")
    mode = Rounding.of(rounding, "rounding")
    if mode is Rounding.STOCHASTIC:
        raise ValueError("rounding is 'stochastic'; a partial sum is rounded in one of the deterministic directions")
    return MatrixUnit(
        family=Family.ROUNDED,
        architecture="ideal",
        instruction=f"{order}{f'-{chunk}' if chunk else ''}",
        a=a.name,
        b=b.name,
        out=out.name,
        accumulators=(out.name,),
        block_length=chunk,
        result_precision=out.p,
        rounding=mode,
        order=order,
        source="idealised: every partial sum is rounded to the accumulator's format",
    )


def _exact(inputs: str, out: str) -> MatrixUnit:
    return MatrixUnit(
        family=Family.EXACT,
        architecture="exact",
        instruction="exact",
        a=inputs,
        b=inputs,
        out=out,
        accumulators=(out,),
        rounding="nearest-even",
        source="idealised: the exact dot product, rounded once",
    )


_FORMATS = ("fp16", "bf16", "tf32", "fp32", "e4m3", "e5m2")

IDEAL: tuple[MatrixUnit, ...] = (
    *(
        ideal(inputs, out, order=order)
        for inputs in _FORMATS
        for out in ("fp32", "fp16", "bf16")
        for order in Order
        if inputs != "fp32" or out == "fp32"
    ),
    *(_exact(inputs, "fp32") for inputs in _FORMATS),
)
"""Of several rows that fit a question, the first is the answer."""
