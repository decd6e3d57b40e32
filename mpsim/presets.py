"""How known implementations convert, as options of `mpsim.encode` and `mpsim.round_to`.

They agree on ordinary numbers and differ where standards leave room: 465 into E4M3 is 448 in one library and NaN in
another. The table says what was measured or documented, and where.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mpsim.formats import FormatLike, get_format
from mpsim.modes import unknown
from mpsim.stochastic import Draws

__all__ = ["CONVERSIONS", "RANDOM_BITS", "Implementation", "conversion", "draws"]

_SATURATE = {"overflow": "saturate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """One library or processor."""

    source: str
    """Version, function or instruction, and what is peculiar."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Options by format name."""
    other: dict[str, Any] | None = field(default_factory=dict)
    """Options for all other formats; None if it converts to no others."""


CONVERSIONS: dict[str, Implementation] = {
    "ocp": Implementation(source="OCP OFP8 1.0, non-saturating mode"),
    "ocp-saturating": Implementation(source="OCP OFP8 1.0, saturating mode", other=_SATURATE),
    "ml_dtypes": Implementation(source="ml_dtypes 0.7, astype"),
    "torch": Implementation(
        source="torch 2.13 CPU: E4M3 saturates, E5M2 does not (NaN 0x7f, where ours is 0x7e); NaN in BF16 is 0xffff",
        options={"e4m3": _SATURATE, "fp16": {"nan": "payload"}, "bf16": {"nan": 0xFFFF}},
    ),
    "cuda": Implementation(
        source="CUDA 13.0, cuda_fp8.h, cuda_fp16.h and cvt.rn: FP8 saturates, every NaN is one positive code",
        options={
            "e4m3": _SATURATE | {"nan": 0x7F},
            "e5m2": _SATURATE | {"nan": 0x7F},
            "fp16": {"nan": 0x7FFF},
            "bf16": {"nan": 0x7FFF},
        },
    ),
    "x86": Implementation(
        source="VCVTPS2PH (F16C), VCVTNEPS2BF16 (AVX512_BF16): payloads kept; to BF16, subnormal inputs are zero",
        options={"fp16": {"nan": "payload"}, "bf16": {"nan": "payload", "subnormal_inputs_as_zero": True}},
        other=None,
    ),
    "amd-gfx950": Implementation(
        source="v_cvt_scalef32_pk_fp8_f32 without clamp: overflow gives NaN with its sign",
        options={"e4m3": {}},
        other=None,
    ),
}
"""Known implementations by name."""


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
        No such implementation, or it does not convert to that format.

    Examples
    --------
    >>> from mpsim.encoding import encode
    >>> [hex(encode(465.0, "e4m3", **conversion(name, "e4m3"))) for name in ("ml_dtypes", "cuda")]
    ['0x7f', '0x7e']
    """
    if name not in CONVERSIONS:
        raise unknown("conversion: name", name, CONVERSIONS)
    known, target = CONVERSIONS[name], get_format(fmt).name
    options = known.options.get(target, known.other)
    if options is None:
        raise ValueError(f"{name} does not convert to {target}, only to {', '.join(known.options)}")
    return dict(options)


RANDOM_BITS: dict[str, dict[str, int]] = {
    # PTX ISA, cvt.rs on sm_100a: fp16x2 takes 13 bits a value, bf16x2 16, and the narrower kinds 16 from a word that
    # several values share (which is not modelled: here every element has its own).
    "nvidia": {"fp16": 13, "bf16": 16, "e4m3": 16, "e5m2": 16, "e3m2": 16, "e2m3": 16, "e2m1": 16},
    # v_cvt_sr_fp8_f32 and v_cvt_sr_bf8_f32 of MI300: as many as float32 has bits more than the format.
    "amd": {"e4m3fnuz": 20, "e5m2fnuz": 21},
}
"""Random bits that hardware adds to what is dropped before it cuts, from float32, by vendor and format.

Of AWS Trainium and Graphcore only the proportional rounding itself is published, not the number of bits.
"""


def draws(vendor: str, fmt: FormatLike, seed: int = 0, stream: int = 0) -> Draws:
    """Return draws with as many random bits as a vendor's conversion from float32 uses.

    The bits themselves are ours: no vendor's generator is emulated.

    Parameters
    ----------
    vendor : {"nvidia", "amd"}
    fmt : FloatFormat or name
    seed, stream : int
        As for `Draws`.

    Raises
    ------
    ValueError
        No such vendor, or it does not round stochastically to that format.

    Examples
    --------
    >>> draws("nvidia", "fp16").bits
    13
    """
    if vendor not in RANDOM_BITS:
        raise unknown("draws: vendor", vendor, RANDOM_BITS)
    name = get_format(fmt).name
    if name not in RANDOM_BITS[vendor]:
        raise ValueError(f"{vendor} does not round stochastically to {name}, only to {', '.join(RANDOM_BITS[vendor])}")
    return Draws(seed=seed, stream=stream, bits=RANDOM_BITS[vendor][name])
