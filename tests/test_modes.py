import pytest

from mpsim.counters import Counters
from mpsim.modes import Rounding, nearest, unknown
from mpsim.stochastic import Draws


def test_an_unknown_name_is_told_with_the_nearest_and_all_others() -> None:
    error = unknown("fruit", "aple", ("apple", "pear"))
    assert str(error) == "fruit is 'aple': did you mean 'apple'? it must be one of apple, pear"
    assert str(unknown("fruit", 7, ("apple", "pear"))) == "fruit is 7: it must be one of apple, pear"


def test_the_likest_name_comes_first() -> None:
    assert nearest("fp15", ("bf16", "fp16", "zzz")) == ["fp16", "bf16"]
    assert nearest("fp15", ("bf16", "fp16"), 1) == ["fp16"]
    assert nearest("?", ("bf16", "fp16")) == []


def test_choices_of_every_kind_are_explained_alike() -> None:
    with pytest.raises(ValueError, match=r"rounding is 'upp': did you mean 'up'\? it must be one of nearest-even"):
        Rounding.of("upp", "rounding")
    with pytest.raises(ValueError, match=r"scheme is 'D': it must be one of A, B, C"):
        Draws(scheme="D")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"event is 'zero': did you mean 'zeros'\? it must be one of elements"):
        Counters().share("zero")
