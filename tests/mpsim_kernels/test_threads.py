import threading

import numba
import pytest

from mpsim_kernels._threads import in_ranges


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 1000])
def test_the_ranges_cover_everything_once(size: int):
    seen = [0] * size

    def task(start: int, stop: int) -> None:
        for i in range(start, stop):
            seen[i] += 1

    in_ranges(task, size, 10)
    assert seen == [1] * size


def test_an_error_in_any_range_is_raised_after_all_have_ended():
    ended = []

    def task(start: int, stop: int) -> None:
        try:
            if start == failing:
                raise ValueError(f"range from {start}")
        finally:
            ended.append((start, stop))

    starts = range(0, 100, max(-(-100 // numba.get_num_threads()), 1))
    for failing in starts:
        ended.clear()
        with pytest.raises(ValueError, match=f"range from {failing}"):
            in_ranges(task, 100, 1)
        assert len(ended) == len(starts)


def test_the_calling_thread_takes_a_range():
    names: list[str] = []
    in_ranges(lambda start, stop: names.append(threading.current_thread().name), 100, 1)
    assert threading.current_thread().name in names
