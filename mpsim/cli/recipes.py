"""The command that lists the FP8 and FP4 training recipes."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpsim.cli._common import Json, app, mistakes

if TYPE_CHECKING:
    from mpsim.amp.recipes import Recipe


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One recipe: te-delayed, deepseek-v3, ...")] = None,
    as_json: Json = False,
) -> None:
    """List the FP8 and FP4 training recipes, or all numbers of one."""
    from mpsim import _text
    from mpsim.amp.recipes import RECIPES, get_recipe

    if name is None:
        if as_json:
            _text.print_json({key: _numbers(recipe) for key, recipe in RECIPES.items()})
        else:
            columns = ("recipe", "kind", "forward", "backward", "split accumulation", "source")
            _text.show(_text.table(columns, [_row(key, recipe) for key, recipe in RECIPES.items()]))
        return
    with mistakes():
        numbers = _numbers(get_recipe(name))
    if as_json:
        _text.print_json(numbers)
    else:
        _text.show(_text.table(("field", "value"), [(key, _shown(value)) for key, value in numbers.items()]))


def _numbers(recipe: Recipe) -> dict[str, Any]:
    """Return the fields of a recipe, its kind first."""
    return {"kind": type(recipe).__name__, **dataclasses.asdict(recipe)}


def _row(name: str, recipe: Recipe) -> tuple[str, ...]:
    split = "all" if len(recipe.split) == 3 else "backward" if recipe.split else "none"
    kind = type(recipe).__name__.removesuffix("Scaling").lower()
    return name, kind, recipe.forward, recipe.backward, split, recipe.source.partition(",")[0]


def _shown(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
