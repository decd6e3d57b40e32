"""The command line: ``mpsim SUBCOMMAND``.

Heavy modules (Numba, matplotlib, rich's tables) are imported inside the commands that need them, so that help comes at
once. Exit codes: 0 done, 1 a check failed, 2 a mistake in what was asked, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli import (  # noqa: F401  (their commands add themselves)
    benches,
    identify,
    machines,
    numbers,
    recipes,
    reports,
    studies,
)
from mpsim.cli._common import MistakeError, app

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app", "main"]

# The base class of all that typer says about wrong arguments; newer releases bring their own copy of click.
_ClickError: Any = typer.BadParameter.__mro__[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # no crash over an ellipsis where the terminal has only ASCII
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code = app(args=arguments, prog_name="mpsim", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _ClickError as error:
        return _fail(error.format_message(), getattr(error, "ctx", None))
    except (MistakeError, OSError) as error:
        return _fail(str(error))


def _fail(message: str, context: Any = None) -> int:
    """Print one line to standard error and return the exit code of a mistake."""
    hint = f" ({context.command_path} --help says more)" if context else ""
    print(f"mpsim: {' '.join(message.split())}{hint}", file=sys.stderr)
    return 2


def _print_version(wanted: bool) -> None:
    if wanted:
        from mpsim import __version__

        print(f"mpsim {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...
