import dataclasses
from typing import Any

import pytest

from mpsim import experiments


def test_every_study_has_a_config_with_defaults_and_a_run():
    for name in experiments.names():
        study = experiments.get(name)
        assert dataclasses.is_dataclass(study.Config())
        assert callable(study.run)
        assert study.__doc__


def test_an_unknown_study_is_an_error_that_lists_them():
    with pytest.raises(
        ValueError, match=r"experiment is 'undeflow': did you mean 'underflow'\? it must be one of underflow"
    ):
        experiments.get("undeflow")
    with pytest.raises(ValueError, match="experiment is 'zzz': it must be one of underflow"):
        experiments.run("zzz")


def test_an_unknown_setting_is_an_error_that_names_it_and_lists_the_others():
    with pytest.raises(
        ValueError,
        match=r"underflow: setting is 'epoch': did you mean 'epochs'\? it must be one of unit, format, seed, epochs",
    ):
        experiments.run("underflow", {"epoch": 1})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"epochs": -1}, "epochs is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"hidden": 0}, "hidden is 0"),
        ({"growth_interval": 0}, "growth_interval is 0"),
        ({"unit": "v1000"}, "unknown unit 'v1000'.*v100"),
        ({"format": "fp61"}, "fp61.*fp16"),
        ({"format": "bf16"}, "v100 has no instruction for inputs bf16"),
        ({"loss_factor": 0.0}, "loss_factor is 0"),
        ({"loss_factor": float("nan")}, "loss_factor is nan"),
        ({"scaling_lr": -1.0}, "scaling_lr is -1"),
        ({"master_lr": -1.0}, "master_lr is -1"),
        ({"momentum": -1.0}, "momentum is -1"),
        ({"scales": ()}, "scales is"),
        ({"scales": (8.0, 128.0)}, "scales is"),
        ({"scales": (1.0, 8.0, 8.0)}, "scales is"),
        ({"scales": (1.0, 128.0, 8.0)}, "scales is"),
        ({"scales": (1.0, float("inf"))}, "scales is"),
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_an_error_before_anything_runs(setting: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        experiments.run("underflow", {"epochs": 0, **setting}, on_part=lambda _: pytest.fail("a part was run"))
