"""Where things are shown, a terminal or a pipe, and what they are put together from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["card", "facts_grid", "is_terminal", "print_json", "show", "table", "terminal_width"]

_PIPE = 100_000  # a pipe has no width: nothing is wrapped or cut


def show(*parts: RenderableType) -> None:
    """Print to standard output: styled and as wide as the terminal, or plain and uncut into a pipe."""
    console = Console(highlight=False, emoji=False)
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    console.width = _PIPE
    with console.capture() as capture:
        console.print(*parts, sep="\n")
    print("\n".join(line.rstrip() for line in capture.get().rstrip("\n").split("\n")))


def print_json(data: Any) -> None:
    """Print JSON; NaN and infinities are not JSON, so they come as strings."""
    print(json.dumps(_plain(data), indent=2, allow_nan=False))


def _plain(data: Any) -> Any:
    match data:
        case dict():
            return {str(key): _plain(value) for key, value in data.items()}
        case list() | tuple():
            return [_plain(value) for value in data]
        case float() if data - data != 0:
            return str(data)
        case None | bool() | int() | float() | str():
            return data
        case _ if hasattr(data, "item"):
            return _plain(data.item())
        case _:
            return str(data)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], numeric: Sequence[str] = (), title: str = "") -> Table:
    """Return a table with a ruled header; columns named in ``numeric`` are aligned to the right."""
    result = Table(
        box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), title=title or None, title_justify="left"
    )
    for column in columns:
        result.add_column(column, justify="right" if column in numeric else "left", overflow="fold")
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return Console().is_terminal


def terminal_width() -> int:
    """Return the columns of the terminal; more than anything needs in a pipe."""
    console = Console()
    return console.width if console.is_terminal else _PIPE


def facts_grid(rows: Sequence[tuple[str, str | Text]]) -> Table:
    """Return names with their values, a line for each."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(value))
    return grid


def card(title: str, body: RenderableType) -> RenderableType:
    """Return ``body`` under its title: in a frame on a terminal."""
    heading = Text(title, "bold")
    if not is_terminal():
        return Group(heading, body)
    return Panel(body, title=heading, title_align="left", expand=False, padding=(0, 1))
