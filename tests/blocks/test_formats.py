from dataclasses import FrozenInstanceError, replace
from fractions import Fraction

import numpy as np
import pytest

from mpsim.blocks import (
    MXFP4,
    IntElement,
    dequantize,
    get_block_format,
    inspect_block,
    quantize,
)
from mpsim.formats import E8M0, FP16, get_format


@pytest.mark.parametrize(
    ("name", "element", "length", "scale", "bits"),
    [
        ("mxfp8_e4m3", "e4m3", 32, "e8m0", 8.25),
        ("mxfp8_e5m2", "e5m2", 32, "e8m0", 8.25),
        ("mxfp6_e3m2", "e3m2", 32, "e8m0", 6.25),
        ("mxfp6_e2m3", "e2m3", 32, "e8m0", 6.25),
        ("mxfp4", "e2m1", 32, "e8m0", 4.25),
        ("mxint8", "int8", 32, "e8m0", 8.25),
        ("nvfp4", "e2m1", 16, "ue4m3", 4.5),
        ("nvfp4_ue5m3", "e2m1", 16, "ue5m3", 4.5),
    ],
)
def test_the_catalogue(name: str, element: str, length: int, scale: str, bits: float):
    fmt = get_block_format(name)
    assert (fmt.element.name, fmt.length, fmt.scale.name, fmt.bits_per_element) == (element, length, scale, bits)
    assert fmt.tensor_scale == (name == "nvfp4")
    assert get_block_format(name.upper().replace("_", "-")) is fmt
    assert str(fmt) == name


@pytest.mark.parametrize(
    ("name", "largest", "emax"),
    [
        ("mxfp8_e5m2", 57344, 15),
        ("mxfp8_e4m3", 448, 8),
        ("mxfp6_e3m2", 28, 4),
        ("mxfp6_e2m3", 7.5, 2),
        ("mxfp4", 6, 2),
        ("mxint8", 1.984375, 0),
    ],
)
def test_the_largest_elements(name: str, largest: float, emax: int):
    fmt = get_block_format(name)
    assert (fmt.max_element, fmt.emax_element) == (Fraction(largest), emax)


def test_formats_and_arrays_are_frozen():
    with pytest.raises(FrozenInstanceError):
        MXFP4.length = 16  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        quantize([1.0], "mxfp4").axis = 1  # type: ignore[misc]


def test_errors_name_the_argument():
    x = np.ones((2, 32), np.float32)
    for call, error, message in [
        (lambda: get_block_format("mxfp7"), ValueError, "unknown block format 'mxfp7'; nearest: mxfp"),
        (lambda: get_block_format(E8M0), TypeError, "fmt is FloatFormat"),
        (lambda: quantize(1.0, "mxfp4"), ValueError, r"x has shape \(\): blocks lie along an axis"),
        (lambda: quantize(x, "mxfp4", 2), ValueError, r"axis is 2; an array of shape \(2, 32\) has axes -2 to 1"),
        (lambda: quantize(x, "mxfp4", scale_rule="flor"), ValueError, "scale_rule is 'flor': did you mean 'floor'"),
        (lambda: quantize(x, "mxfp4", scale_rule="torchao"), ValueError, "scale_rule is 'torchao', but the scales"),
        (lambda: quantize(x, "nvfp4", scale_rule="floor"), ValueError, "scale_rule is 'floor'; for the ue4m3 scales"),
        (lambda: quantize(x, "mxfp4", rounding="even"), ValueError, "rounding is 'even'"),
        (lambda: quantize(x, "mxfp4", overflow="clip"), ValueError, "overflow is 'clip'"),
        (lambda: quantize(x, "mxfp4", rng=1), ValueError, "rng is given, but rounding is 'nearest-even'"),
        (lambda: quantize(x, "mxfp4", rounding="stochastic"), TypeError, "rng is None"),
        (lambda: quantize(x, "mxfp4", tensor_scale=2.0), ValueError, "tensor_scale is 2.0, but mxfp4"),
        (lambda: quantize(x, "nvfp4", tensor_scale=-2.0), ValueError, "tensor_scale is -2.0; a positive number"),
        (lambda: quantize(x, "nvfp4", tensor_scale=0.0), ValueError, "tensor_scale is 0.0; a positive number"),
        (lambda: quantize(x, "nvfp4", tensor_scale=np.inf), ValueError, "tensor_scale is inf; a positive number"),
        (lambda: quantize(x, "nvfp4", tensor_scale=1e38), ValueError, "tensor_scale is 1e\\+38; a positive number"),
        (lambda: quantize(x * 1j, "mxfp4"), TypeError, "x has dtype complex64"),
        (lambda: dequantize(quantize(x, "mxfp4"), np.float16), TypeError, "dtype is float16"),
        (lambda: replace(MXFP4, length=0), ValueError, "length is 0"),
        (lambda: replace(MXFP4, scale=FP16), ValueError, "scale is fp16"),
        (lambda: replace(MXFP4, element=get_format("fp32")), ValueError, "element is fp32"),
        (lambda: replace(MXFP4, tensor_scale=True), ValueError, "tensor_scale is True"),
        (lambda: IntElement(name="i", bits=1, fraction_bits=0), ValueError, "bits = 1"),
        (lambda: inspect_block(x, "mxfp4"), ValueError, r"x has shape \(2, 32\); one block"),
        (lambda: inspect_block(np.ones(17), "nvfp4"), ValueError, r"x has shape \(17,\); one block"),
    ]:
        with pytest.raises(error, match=message):
            call()
    q = quantize(x, "mxfp4")
    with pytest.raises(ValueError, match=r"q.scales has shape \(2, 1\)"):
        dequantize(replace(q, codes=np.zeros((2, 65), np.uint8)))
    with pytest.raises(TypeError, match="q has codes of int64"):
        dequantize(replace(q, codes=q.codes.astype(np.int64)))
