"""Digests of results of every operation, format, unit and mode: the same on every computer.

``python digest.py [PART ...]`` prints them as JSON, and whether several threads computed them; the tests compare them
with ``golden/digests.json``. Inputs come from random integers alone, for NumPy's normal distribution may differ in its
last bit. NaNs count as one where the processor makes them.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mpsim import arithmetic, blocks, units
from mpsim.encoding import decode, encode
from mpsim.formats import CATALOGUE, FloatFormat, get_format
from mpsim.matmul import SCHEDULES, matmul, matmul_codes
from mpsim.modes import Rounding
from mpsim.ops import TABLE, Call, Inner, Part
from mpsim.ops.inner import plain
from mpsim.ops.windows import Windows
from mpsim.rounding import round_to
from mpsim.stochastic import Draws
from mpsim.units import Family, MatrixUnit
from mpsim_kernels import _threads

Array = np.ndarray[Any, Any]

DETERMINISTIC = [mode.value for mode in Rounding if mode is not Rounding.STOCHASTIC]
NARROW = ("fp16", "bf16", "e4m3", "e5m2", "fp32")
ONE_NAN = (Family.FUSED, Family.SCALED, Family.GROUPED, Family.INTERLEAVED)


def words(seed: int, bits: int, shape: tuple[int, ...]) -> Array:
    """Return random codes of a width, any bits."""
    dtype = f"u{1 if bits <= 8 else 2 if bits <= 16 else 4 if bits <= 32 else 8}"
    return np.random.default_rng(seed).integers(0, 1 << bits, shape, np.uint64).astype(dtype)


def moderate(seed: int, shape: tuple[int, ...]) -> Array:
    """Return multiples of 2^-20 between -8 and 8, a few of them tiny, in float64."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-(1 << 23), 1 << 23, shape).astype(np.float64) * 2.0**-20
    return np.ldexp(numbers, -rng.choice([0, 0, 0, 1, 4, 12], shape))  # exact in every rounding direction


def one_nan(x: Array) -> Array:
    """Return floats whose NaNs are all the same."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x) if x.dtype.kind == "f" else x


def formats() -> Iterator[tuple[str, Array]]:
    floats = words(1, 32, (2048,)).view(np.float32), words(2, 64, (2048,)).view(np.float64)
    inputs = [one_nan(x) for x in (*floats, moderate(3, (2048,)))]
    for fmt, mode in itertools.product(CATALOGUE, DETERMINISTIC):
        for overflow, x in itertools.product(("ieee", "saturate"), inputs):
            codes = encode(x, fmt, mode, overflow)
            yield f"{fmt.name} {mode}", codes
        if fmt.name != "fp64":
            yield f"{fmt.name} {mode}", one_nan(round_to(inputs[2], fmt, mode, flush_subnormals=True))
        yield f"{fmt.name} {mode}", one_nan(decode(codes, fmt))


def stochastic() -> Iterator[tuple[str, Array]]:
    for name in ("fp16", "bf16", "e4m3", "e2m1"):
        for bits in (None, 8):
            draws = Draws(seed=7, stream=1) if bits is None else Draws(seed=7, stream=1, bits=bits)
            yield name, encode(moderate(4, (4096,)), name, "stochastic", rng=draws)


def operations() -> Iterator[tuple[str, Array]]:
    for name, mode in itertools.product(NARROW, DETERMINISTIC):
        fmt = get_format(name)
        a, b, c = (words(seed, fmt.bits, (1024,)) for seed in (5, 6, 7))
        for operation, operands in (("add", (a, b)), ("sub", (a, b)), ("mul", (a, b)), ("div", (a, b)),
                                    ("sqrt", (a,)), ("fma", (a, b, c))):  # fmt: skip
            options = {
                "rounding": mode,
                "flush_subnormals": mode == "down",
                "tininess": "before" if mode == "up" else "after",
            }
            for part in getattr(arithmetic, operation)(*operands, fmt, codes=True, return_flags=True, **options):
                yield f"{operation} {name}", part
        for target in ("fp16", "bf16", "e5m2", "fp32"):
            for part in arithmetic.convert(a, fmt, target, codes=True, return_flags=True, rounding=mode):
                yield f"convert {name}", part
    for name, order in itertools.product(("fp16", "bf16", "e5m2"), ("sequential", "pairwise", "kahan")):
        yield f"sum {name}", one_nan(np.asarray(arithmetic.sum(moderate(8, (16, 200)), name, order=order, axis=-1)))


def other_operations() -> Iterator[tuple[str, Array]]:
    for name in NARROW:
        fmt = get_format(name)
        a, b = (words(seed, fmt.bits, (1024,)) for seed in (30, 31))
        b[::4] = a[::4]
        for operation in ("eq", "ne", "lt", "le", "gt", "ge", "unordered", "minimum", "maximum", "minimum_number",
                          "maximum_number", "minimum_magnitude", "maximum_magnitude", "minimum_magnitude_number",
                          "maximum_magnitude_number", "rem"):  # fmt: skip
            for part in getattr(arithmetic, operation)(a, b, fmt, codes=True, return_flags=True):
                yield f"{operation} {name}", part
        integers = words(32, 32, (1024,)).view(np.int32)
        for mode in DETERMINISTIC:
            options = {"rounding": mode, "codes": True, "return_flags": True}
            for part in arithmetic.round_to_integral(a, fmt, exact=True, **options):
                yield f"round_to_integral {name}", part
            for dtype, beyond in ((np.int32, "indefinite"), (np.uint64, "saturate")):
                for part in arithmetic.to_integer(a, fmt, dtype, beyond=beyond, **options):
                    yield f"to_integer {name}", part
            for part in arithmetic.from_integer(integers, fmt, **options):
                yield f"from_integer {name}", part
    left, right = moderate(33, (16, 200)), moderate(34, (16, 200))
    for name, order in itertools.product(("fp16", "bf16", "e5m2"), ("sequential", "pairwise", "exact")):
        yield f"dot {name}", one_nan(np.asarray(arithmetic.dot(left, right, name, order=order)))


def block_formats() -> Iterator[tuple[str, Array]]:
    for fmt in blocks.BLOCK_CATALOGUE:
        for rule in ("floor", "ceil", "even"):
            try:
                q = blocks.quantize(moderate(9, (8, 160)), fmt, -1, scale_rule=rule)
            except ValueError:  # a rule that is not for this kind of scale
                continue
            yield fmt.name, q.codes
            yield fmt.name, q.scales


def one_unit(row: MatrixUnit) -> Iterator[Array]:
    """Return products of a unit: any bits, and moderate numbers."""
    k = 2 * max(row.k, row.block_length, 4) + (0 if row.scale else 3)
    a, b = (_codes(fmt, seed, shape) for fmt, seed, shape in zip(row.inputs, (10, 11), ((5, k), (k, 7)), strict=True))
    scales = {}
    if row.scale:
        groups = -(-k // row.scale_block)
        scales = {"scale_a": 120 + words(12, 8, (5, groups)) % 8, "scale_b": 120 + words(13, 8, (groups, 7)) % 8}
    out = get_format(row.out)
    c = encode(moderate(14, (5, 7)), out)
    left, right = (
        encode(moderate(seed, x.shape), fmt) for seed, x, fmt in zip((15, 16), (a, b), row.inputs, strict=True)
    )
    if "tf32" in (row.a, row.b):
        left, right = left << 13, right << 13
    for x, y in ((a, b), (left, right)):
        d = matmul_codes(x, y, c, row, **scales)
        yield d if row.family in ONE_NAN else _plain(d, out)


def _codes(fmt: FloatFormat, seed: int, shape: tuple[int, ...]) -> Array:
    """Return any bits; words of 32 for tf32."""
    return words(seed, 32 if fmt.name == "tf32" else fmt.bits, shape)


def _plain(codes: Array, fmt: FloatFormat) -> Array:
    return np.where(np.isnan(decode(codes, fmt)), codes.dtype.type(fmt.last_code), codes)


def matrix_units() -> Iterator[tuple[str, Array]]:
    for row in units.UNITS:
        for d in one_unit(row):
            yield f"{row.architecture} {row.a} {row.out}", d


def schedules() -> Iterator[tuple[str, Array]]:
    a, b = moderate(17, (6, 700)), moderate(18, (700, 5))
    for name, schedule in SCHEDULES.items():
        for unit, inputs in (("h100", "e4m3"), ("rtx-4060", "e4m3"), ("a100", "bf16")):
            yield name, one_nan(matmul(a, b, unit=unit, inputs=inputs, schedule=schedule, split_k=3, result="fp16"))


def differentiable() -> Iterator[tuple[str, Array]]:
    """Yield the operations that take one or two arrays, with their gradients; functions of float64 are rounded once."""
    x, y = (np.abs(moderate(seed, (6, 8))).astype(np.float32) + np.float32(0.5) for seed in (19, 20))
    g = moderate(21, (6, 8)).astype(np.float32)
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "relu", "exp", "log", "sqrt", "tanh",
                 "sigmoid", "silu", "gelu", "erf"):  # fmt: skip
        operation, call = TABLE[name], Call(get_format("fp32"), wanted=(True, True))
        inputs = (x, y) if name in ("add", "sub", "mul", "div", "maximum", "minimum") else (x,)
        result = operation.forward(call, *inputs)
        yield name, np.asarray(result)
        for gradient in operation.vjp(call, g, result, *inputs):
            if gradient is not None:
                yield name, np.asarray(gradient)


def table() -> Iterator[tuple[str, Array]]:
    """Yield every operation of the table with its gradients, on a unit and with every step rounded to FP16.

    So neither a BLAS nor the last bits of a library's functions have a say.
    """
    fmt = get_format("fp16")
    x, y, z = (round_to(moderate(seed, (6, 8)).astype(np.float32), fmt) for seed in (35, 36, 37))
    for name, (inputs, options) in _cases(x, y, z).items():
        inner = Inner.of("rounded", "fp32", "sequential", None)
        call = Call(fmt, unit="a100", wanted=(True,) * len(inputs), inner=inner)
        operation = TABLE[name]
        result = plain(operation.run(call, inputs, options))
        yield name, one_nan(result)
        g = np.resize(z, result.shape)
        for gradient in operation.differentiate(call, g, result, inputs, options):
            if gradient is not None:
                yield name, one_nan(np.asarray(plain(gradient.values if isinstance(gradient, Part) else gradient)))


def _cases(x: Array, y: Array, z: Array) -> dict[str, tuple[tuple[Array, ...], dict[str, Any]]]:
    """Return inputs and options of every operation: matrices of six rows and eight columns, and parts of them."""
    row, positive, images = x[0], np.abs(x) + np.float32(0.5), np.resize(x, (2, 2, 5, 4))
    index = np.array([[0, 3, 3, 1], [5, 5, 0, 2]])
    labels, drawn = np.array([1, 0, 7, 2, 2, 5]), Draws(seed=7, stream=1)
    windows = Windows((2, 2), padding=((1, 0), (0, 1)))
    one, two = (x,), (x, y)
    return {
        **{name: (one, {}) for name in ("neg", "abs", "relu", "exp", "tanh", "sigmoid", "silu", "softplus", "erf",
                                        "gelu", "cast", "softmax", "log_softmax")},
        **{name: ((positive,), {}) for name in ("log", "sqrt", "rsqrt")},
        **{name: (two, {}) for name in ("add", "sub", "mul", "div", "maximum", "minimum", "mse_loss", "huber_loss")},
        **{name: (one, {"dim": 1}) for name in ("sum", "mean", "var", "amax", "amin")},
        "pow": ((positive, y), {}),
        "where": (two, {"condition": z > 0}),
        "clamp": (one, {"min": -1.0, "max": 2.0}),
        "matmul": ((x, y.T), {}),
        "linear": ((x, y, row[:6]), {}),
        "conv2d": ((images, np.resize(y, (3, 2, 2, 2)), row[:3]), {"windows": windows}),
        "max_pool2d": ((images,), {"windows": windows}),
        "avg_pool2d": ((images,), {"windows": windows}),
        "scaled_dot_product_attention": ((x, y, z), {"scale": 0.25}),
        "layer_norm": ((x, y[0], z[0]), {"dims": 1}),
        "rms_norm": ((x, y[0]), {"dims": 1, "eps": 2.0**-10}),
        "batch_norm": ((x, y[0], z[0]), {"mean": y[1], "var": positive[1], "training": True}),
        "dropout": (one, {"p": 0.25, "draws": drawn}),
        "binary_cross_entropy_with_logits": ((x, np.abs(y) / np.float32(8)), {}),
        "nll_loss": (one, {"target": labels, "label_smoothing": 0.125}),
        "getitem": (one, {"index": (index[0],)}),
        "embedding": (one, {"index": index, "padding_idx": 5}),
        "gather": (one, {"dim": 0, "index": index}),
        "scatter_add": (two, {"dim": 0, "index": index}),
        "masked_fill": (one, {"mask": z > 0, "value": 1.5}),
        "reshape": (one, {"shape": (4, 12)}),
        "permute": (one, {"dims": (1, 0)}),
        "cat": (two, {"dim": 1}),
    }  # fmt: skip


PARTS: dict[str, Callable[[], Iterator[tuple[str, Array]]]] = {
    "formats": formats,
    "stochastic": stochastic,
    "operations": operations,
    "other operations": other_operations,
    "block formats": block_formats,
    "matrix units": matrix_units,
    "schedules": schedules,
    "differentiable": differentiable,
    "table": table,
}


def tiny() -> Iterator[tuple[str, Array]]:
    """Yield what is compiled anew in seconds."""
    yield "encode", encode(moderate(22, (64,)), "fp16")
    yield "decode", decode(words(23, 16, (64,)) & 0x7BFF, "fp16")


def small() -> Iterator[tuple[str, Array]]:
    """Yield a little of each kind, which plain Python computes in seconds."""
    yield "encode", encode(moderate(22, (64,)), "e4m3")
    yield "add", arithmetic.add(words(23, 16, (64,)), words(24, 16, (64,)), "fp16", codes=True)
    yield "matmul", matmul_codes(words(25, 16, (2, 9)), words(26, 16, (9, 2)), unit="v100")


def large() -> Iterator[tuple[str, Array]]:
    """Yield what is cut into ranges for several threads."""
    x = moderate(40, (1 << 19,))
    yield "encode", encode(x, "fp16")
    yield "stochastic", encode(x, "fp16", "stochastic", rng=Draws(seed=7, stream=1))
    yield "add", arithmetic.add(words(41, 16, x.shape), words(42, 16, x.shape), "fp16", codes=True)
    a, b = (encode(moderate(seed, (256, 256)), "bf16") for seed in (43, 44))
    yield "matmul", matmul_codes(a, b, unit="a100", inputs="bf16")


EXTRACTS = {"tiny": tiny, "small": small, "large": large}
"""Parts of the parts, for conditions under which all of them would take minutes."""


def digests(parts: dict[str, Callable[[], Iterator[tuple[str, Array]]]]) -> tuple[dict[str, str], int]:
    """Return a digest for each name of each part, and how many bytes went in."""
    hashes: dict[str, Any] = {}
    size = 0
    for part, function in parts.items():
        for name, array in function():
            digest = hashes.setdefault(f"{part}: {name}", hashlib.sha256())
            data = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(f"{data.dtype.str}{data.shape}".encode() + data.tobytes())
            size += data.nbytes
    return {name: digest.hexdigest()[:16] for name, digest in hashes.items()}, size


def main(names: list[str]) -> None:
    every = PARTS | EXTRACTS
    found, size = digests({name: every[name] for name in names} or every)
    print(json.dumps({"bytes": size, "digests": found, "threads": _threads._pool is not None}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
