"""The command that finds out what a device computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli._common import Json, app, formats_pair, mistakes

if TYPE_CHECKING:
    from collections.abc import Callable


@app.command()
def identify(
    device: Annotated[
        str,
        typer.Option(metavar="NAME", help="numpy; cpu, cuda or cuda:1 (through torch); or an emulated unit: v100, ..."),
    ] = "cpu",
    inputs: Annotated[str, typer.Option(metavar="NAME", help="Format of the inputs.")] = "bf16",
    out: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Format of the results; that of the inputs unless given, of FP8 fp32."),
    ] = None,
    shape: Annotated[str, typer.Option(metavar="M,N,K", help="Shape of the products that are asked for.")] = "64,64,64",
    fast: Annotated[
        bool, typer.Option("--fast/--slow", help="FP8 through torch: with fast or slow accumulation.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Find out how a device multiplies matrices: order, bits kept, rounding, special values."""
    from mpsim import _text
    from mpsim.hardware import probe

    with mistakes():
        function, result = _device(device, inputs, out, fast)
        found = probe(function, formats_pair(inputs) or inputs, result, shape=_shape(shape))
    if as_json:
        _text.print_json({"device": device, "inputs": inputs, "out": result, **found.to_dict()})
    else:
        print(f"{device}: {inputs} -> {result}, {shape}\n\n{found}")


def _device(device: str, inputs: str, out: str | None, fast: bool) -> tuple[Callable[..., Any], str]:
    """Return the function that multiplies matrices on a device, and the format of its results."""
    from mpsim import units
    from mpsim.hardware import devices

    pair = formats_pair(inputs) or inputs
    if device == "numpy":
        return devices.numpy_matmul(inputs), out or inputs
    if device.partition(":")[0] in ("cpu", "cuda"):
        result = devices.torch_formats(device, pair, out)[2]
        return devices.torch_matmul(device, pair, result, fast), result
    unit = units.get(device, pair, out)
    return devices.emulated_matmul(unit), unit.out


def _shape(text: str) -> tuple[int, int, int]:
    try:
        m, n, k = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--shape is {text!r}; three sizes with commas between are needed, such as 64,64,64") from None
    return m, n, k
