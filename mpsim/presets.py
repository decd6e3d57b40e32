"""How known implementations convert, as options of `mpsim.encode` and `mpsim.round_to`.

They agree on ordinary numbers and differ where standards leave room: 465 into E4M3 is 448 in one library and NaN in
another. The table says what was measured or documented, and where.
"""

from __future__ import annotations

import difflib
from typing import Any

from mpsim.formats import FormatLike, get_format

__all__ = ["CONVERSIONS", "conversion"]

_SATURATE = {"overflow": "saturate"}

CONVERSIONS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "ocp": ("OCP OFP8 1.0, non-saturating mode", {}),
    "ocp-saturating": ("OCP OFP8 1.0, saturating mode", {"*": _SATURATE}),
    "ml_dtypes": ("ml_dtypes 0.7 astype", {}),
    "cuda": (
        "CUDA 13.0 cuda_fp8.h, cuda_fp6.h, cuda_fp4.h and cvt.rn: FP8 saturates, every NaN is one positive code",
        {
            "e4m3": _SATURATE | {"nan": 0x7F},
            "e5m2": _SATURATE | {"nan": 0x7F},
            "fp16": {"nan": 0x7FFF},
            "bf16": {"nan": 0x7FFF},
        },
    ),
    "x86": (
        "VCVTPS2PH (F16C) and VCVTNEPS2BF16 (AVX512_BF16): payloads kept; to bfloat16 subnormal inputs are zero",
        {"fp16": {"nan": "payload"}, "bf16": {"nan": "payload", "subnormal_inputs_as_zero": True}},
    ),
    "amd-gfx950": ("v_cvt_scalef32_pk_fp8_f32 without clamp: overflow gives NaN with its sign", {"e4m3": {}}),
}
"""For each implementation its source, and options by format name (``"*"`` for all others)."""


def conversion(name: str, fmt: FormatLike) -> dict[str, Any]:
    """Return keyword arguments that make `encode` and `round_to` convert like a known implementation.

    Parameters
    ----------
    name : str
        A key of `CONVERSIONS`.
    fmt : FloatFormat or name

    Raises
    ------
    ValueError
        No such implementation.

    Examples
    --------
    >>> from mpsim.encoding import encode
    >>> [hex(encode(465.0, "e4m3", **conversion(name, "e4m3"))) for name in ("ml_dtypes", "cuda")]
    ['0x7f', '0x7e']
    """
    if name not in CONVERSIONS:
        near = difflib.get_close_matches(name, CONVERSIONS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown implementation {name!r}: {hint}there are {', '.join(CONVERSIONS)}")
    options = CONVERSIONS[name][1]
    return dict(options.get(get_format(fmt).name, options.get("*", {})))
