import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
import mpsim
from mpsim._heap import keep_freed_memory

w = mpsim.Tensor(np.full((256, 1), 0.5), requires_grad=True)
x = mpsim.Tensor(np.ones((4096, 1)))

def step():
    (x * w.reshape(1, 256)).exp().sum().backward()  # arrays of 8 MB
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    return faults

counts = [step() for _ in range(8)]
print(counts[-1] - counts[-4], keep_freed_memory())
"""


def page_faults(**environment: str) -> tuple[int, bool]:
    """Return the page faults of three steps on some arrays of 8 MB, and whether freed memory is kept."""
    chosen = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=chosen | environment, capture_output=True, text=True, check=True
    )
    faults, kept = run.stdout.split()
    return int(faults), kept == "True"


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="the C library is not glibc")
def test_steps_after_the_first_run_in_memory_that_is_there():
    faults, kept = page_faults()
    assert kept
    without, kept = page_faults(MALLOC_TRIM_THRESHOLD_="131072")
    assert not kept, "the user's own choice was not respected"
    pages = 8 * 4096 * 256 // os.sysconf("SC_PAGE_SIZE")  # of one array
    assert faults < pages / 8
    assert without > pages
