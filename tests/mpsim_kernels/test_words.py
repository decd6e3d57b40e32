import numba
import numpy as np
import pytest

from mpsim_kernels.words import words


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (37, 51), (1 << 17, 1), (1, 1 << 17), (401, 333), (1024, 512)])
def test_the_words_of_a_transpose_are_the_words_transposed(shape: tuple[int, int]):
    x = np.random.default_rng(0).integers(-(2**31), 2**31, shape).astype(np.int32)  # NaNs of every kind among them
    for given, want in ((x, x), (x.T, x.T), (x[::-1], x[::-1])):
        before = numba.get_num_threads()
        for threads in (1, before):
            numba.set_num_threads(threads)
            got = words(given.view(np.float32) if given.flags.c_contiguous else given.T.view(np.float32).T)
            numba.set_num_threads(before)
            assert got.flags.c_contiguous
            assert got.flags.writeable
            np.testing.assert_array_equal(got, want)


def test_words_that_cannot_be_written_are_copied():
    x = np.ones((400, 400), np.float32)
    x.flags.writeable = False
    for given in (x, x.T):
        got = words(given)
        assert got.flags.writeable
        assert not np.may_share_memory(got, x)
