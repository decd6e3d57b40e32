import json
import sys
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

import mpsim
from bits import assert_same_bits
from mpsim.cli import main
from mpsim.encoding import decode
from mpsim.hardware import probe, record_torch, torch_matmul
from mpsim.hardware.devices import torch_formats
from mpsim.rounding import round_to

Array = np.ndarray[Any, Any]

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="plain Python takes minutes")


@pytest.mark.parametrize(
    ("device", "inputs", "out", "formats"),
    [
        ("cpu", "fp64", None, ("fp64", "fp64", "fp64")),
        ("cpu", "float16", None, ("fp16", "fp16", "fp16")),
        ("cuda", "bf16", "fp32", ("bf16", "bf16", "fp32")),
        ("cuda", "tf32", None, ("tf32", "tf32", "fp32")),
        ("cpu", "float8_e4m3fn", None, ("e4m3", "e4m3", "fp32")),
        ("cuda:1", ("e5m2", "e4m3"), "bf16", ("e5m2", "e4m3", "bf16")),
    ],
)
def test_formats_of_torch_products(device: str, inputs: Any, out: str | None, formats: tuple[str, ...]) -> None:
    assert torch_formats(device, inputs, out) == formats


@pytest.mark.parametrize(
    ("inputs", "out", "said"),
    [
        (
            "tf32",
            None,
            "inputs is tf32; torch.mm on cpu takes fp64, fp32, fp16, bf16, and torch._scaled_mm two of e4m3",
        ),
        (("fp16", "bf16"), None, "inputs is fp16, bf16; torch.mm on cpu takes"),
        (("e4m3", "bf16"), None, "inputs is e4m3, bf16; torch.mm on cpu takes"),
        ("e3m4", None, "inputs is e3m4; torch.mm on cpu takes"),
        ("e4m3", "e4m3", "out is 'e4m3': .* one of fp32, fp16, bf16"),
        ("fp16", "bf16", "out is 'bf16': .* one of fp16, fp32"),
        ("fp32", "fp16", "out is 'fp16': .* one of fp32"),
    ],
)
def test_products_that_torch_lacks_are_refused(inputs: Any, out: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        torch_formats("cpu", inputs, out)


# A stand-in for torch on a GPU.


class Tensor:
    """As much of torch's tensor as a product of FP8 needs."""

    device = "cuda"

    def __init__(self, array: Array) -> None:
        self.array = array

    def view(self, dtype: str) -> "Tensor":
        assert dtype == "e4m3"
        return Tensor(decode(self.array.view(np.uint8), dtype))

    def to(self, *_: Any, **__: Any) -> "Tensor":
        return self

    def contiguous(self) -> "Tensor":
        return self

    def t(self) -> "Tensor":
        return Tensor(self.array.T)

    def numpy(self) -> Array:
        return self.array


def h100(asked: set[bool]) -> Any:
    """Return a torch whose FP8 products are those of an emulated H100; it notes the accumulation asked for."""

    def scaled_mm(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: str, use_fast_accum: bool) -> Any:
        assert scale_a.array == scale_b.array == 1
        asked.add(use_fast_accum)
        unit = mpsim.units.get("h100", "e4m3", out_dtype, instruction="wgmma.m64n8k32")
        return Tensor(mpsim.matmul(a.array, b.array, unit=unit))

    return SimpleNamespace(
        __version__="2.0",
        cuda=SimpleNamespace(is_available=lambda: True, device_count=lambda: 1),
        float8_e4m3fn="e4m3",
        float32="fp32",
        from_numpy=Tensor,
        ones=lambda shape, device: Tensor(np.ones(shape)),
        _scaled_mm=scaled_mm,
    )


@compiled
@pytest.mark.parametrize(("option", "fast"), [([], True), (["--slow"], False)])
def test_fp8_is_probed_through_scaled_mm(
    option: list[str], fast: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: set[bool] = set()
    monkeypatch.setitem(sys.modules, "torch", h100(asked))
    assert main(["identify", "--device", "cuda", "--inputs", "e4m3", "--shape", "16,16,64", "--json", *option]) == 0
    told = json.loads(capsys.readouterr().out)
    assert asked == {fast}
    assert (told["inputs"], told["out"]) == ("e4m3", "fp32")
    assert "hopper wgmma.m64n8k32 (e4m3 x e4m3 -> fp32)" in told["rows"]
    assert told["facts"]["fraction bits of products"] == "13"


def test_what_torch_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuses(*_: Any, **__: Any) -> None:
        raise RuntimeError("torch._scaled_mm is only supported on devices of capability 8.9\nException raised from ...")

    torch = h100(set())
    torch._scaled_mm = refuses
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert main(["identify", "--device", "cuda", "--inputs", "e4m3"]) == 2
    error = capsys.readouterr().err
    assert "torch 2.0 on cuda, e4m3 x e4m3 -> fp32: torch._scaled_mm is only supported" in error
    assert error.count("\n") == 1


# With torch.


@pytest.mark.parametrize("inputs", ["fp16", "e4m3"])
def test_what_is_probed_is_what_is_recorded(inputs: str) -> None:
    pytest.importorskip("torch")
    recording, refused = record_torch("cpu", [inputs])
    parts = [part for part in recording.sets if part.name.endswith("normal")]
    if not parts:
        pytest.skip(f"torch refuses: {refused}")
    for part in parts:
        function = torch_matmul("cpu", inputs, part.result_format, fast="fast" in part.name)
        a, b = (decode(part.arrays[name], inputs)[0] for name in "ab")
        want = part.results[0]
        want = want.view(np.float32) if part.result_format == "fp32" else decode(want, part.result_format)
        assert_same_bits(function(a, b), want)


@compiled
def test_the_unit_found_gives_torch_bits_on_other_operands() -> None:
    torch = pytest.importorskip("torch")
    function, shape = torch_matmul("cpu", "e4m3"), (16, 16, 48)
    rng = np.random.default_rng(7)
    a, b = (round_to(rng.standard_normal(x).astype(np.float32), "e4m3") for x in ((16, 48), (48, 16)))
    try:
        want = function(a, b)
    except ValueError as error:
        pytest.skip(f"torch {torch.__version__} refuses: {error}")
    unit = probe(function, "e4m3", shape=shape).unit
    if unit is None:
        pytest.skip("no unit gives all answers: another library on this processor")
    assert_same_bits(mpsim.matmul(a, b, unit=unit), want)
