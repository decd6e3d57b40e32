import json

import pytest

from mpsim.amp.controllers import Phases
from mpsim.experiments.adaptive import ARMS, Arm, Config, Measured, run


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    """Return two epochs of every arm: a few seconds."""
    return {m.arm: m for m in run(Config(epochs=2)).measured}


def test_scales_bring_back_what_small_gradients_lose(measured: dict[str, Measured]):
    assert measured["fp16, small gradients"].accuracy < 0.2
    for name in ("dynamic loss scale", "layer scales"):
        # At most 7 of the 359 test images.
        assert abs(measured[name].accuracy - measured["fp32"].accuracy) < 0.02
        assert measured[name].skipped <= 2


def test_formats_change_over_time_as_the_controllers_say(measured: dict[str, Measured]):
    assert measured["phases"].formats == ((0, "e5m2"), (60, "fp16"))
    assert [fmt for _, fmt in measured["diversity"].formats][:2] == ["e5m2", "fp16"]
    assert measured["noise budget"].formats[0] == (0, "fp32")
    assert measured["e5m2"].narrow == 1
    for name in ("phases", "diversity", "noise budget"):
        assert 0 < measured[name].narrow < 1
        assert measured[name].loss < measured["e5m2"].loss


def test_every_format_of_8_bits_is_narrow(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ARMS, "e4m3", Arm(lambda: Phases([(0, "e4m3"), (1, "fp16")])))
    measured = run(Config(arms=("e4m3",), epochs=1, batch_size=512, hidden=4)).measured[0]
    assert measured.formats == ((0, "e4m3"), (1, "fp16"))
    assert measured.narrow == 1 / 3


def test_a_run_is_repeated_bit_for_bit(measured: dict[str, Measured]):
    again = run(Config(arms=("noise budget",), epochs=2))
    assert again.measured[0] == measured["noise budget"]
    assert json.loads(json.dumps(again.to_dict()))["measured"][0]["arm"] == "noise budget"
    assert len(again.table.rows[0]) == len(again.table.columns)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"arms": ("fp61",)}, "'fp61'"),
        ({"seed": -1}, "seed is -1"),
        ({"lr": float("nan")}, "lr is nan"),
    ],
)
def test_a_wrong_setting_is_named(change: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Config(**change)


def test_every_controller_has_an_arm():
    names = {type(arm.controller()).__name__ for arm in ARMS.values()}
    assert names == {"DynamicLossScale", "LayerScales", "Phases", "DiversitySwitch", "NoiseBudget"}
