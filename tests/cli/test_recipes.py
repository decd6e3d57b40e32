import json

import pytest

from mpsim.amp.recipes import RECIPES
from mpsim.cli import main


def test_all_recipes_are_listed_with_their_formats(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:5] for line in lines if line and line.split()[0] in RECIPES}
    assert rows.keys() == RECIPES.keys()
    assert rows["te-delayed"] == ["delayed", "e4m3", "e5m2", "backward"]
    assert rows["te-block"] == ["block", "e4m3", "e4m3", "all"]
    assert rows["keras-float8"] == ["keras", "e4m3", "e5m2", "none"]
    assert rows["torchao-rowwise"] == ["rowwise", "e4m3", "e4m3", "none"]


def test_one_recipe_prints_every_field(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "te-delayed"]) == 0
    shown = capsys.readouterr().out
    assert "amax_history_len" in shown
    assert "1024" in shown
    assert main(["recipes", "te-nvfp4", "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["kind"] == "NVFP4Scaling"
    assert numbers["square"] == ["weight"]
    assert main(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == RECIPES.keys()


def test_an_unknown_recipe_is_a_mistake(capsys: pytest.CaptureFixture[str]):
    assert main(["recipes", "te-delaid"]) == 2
    assert "did you mean 'te-delayed'?" in capsys.readouterr().err
