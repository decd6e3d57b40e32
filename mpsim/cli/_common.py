"""What the commands have in common: the application, options, and mistakes told in one line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

__all__ = ["Json", "MistakeError", "NumberCommand", "app", "formats_pair", "mistakes"]


class MistakeError(Exception):
    """Something the user can put right; shown as one line."""


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Take the errors of what is called here for mistakes in the arguments, not in mpsim."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise MistakeError(str(error)) from error


app = typer.Typer(
    help="A laboratory for reduced-precision arithmetic: bit-exact FP16, BF16, FP8 and tensor cores on any CPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it comes twice as fast
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""The option that every command with a table has."""


class NumberCommand(TyperCommand):
    """A command whose argument may be a negative number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # A blank in front keeps -0.1 from being read as options; numbers may have blanks around them.
        number = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)
        return super().parse_args(ctx, [f" {arg}" if number.match(arg) else arg for arg in args])


def formats_pair(inputs: str | None) -> str | tuple[str, str] | None:
    """Return one name of a format, or two that have a comma between them."""
    if inputs is None or "," not in inputs:
        return inputs
    a, _, b = inputs.partition(",")
    if "," in b:
        raise ValueError(f"inputs is {inputs!r}; one format is needed, or two with a comma between")
    return a, b
