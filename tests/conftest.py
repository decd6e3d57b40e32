import os

import hypothesis
import pytest

# The first call of a kernel compiles it, so a time limit for one example means nothing.
hypothesis.settings.register_profile("mpsim", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "mpsim")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave exhaustive and long tests out unless -m speaks of them."""
    silent = [name for name in ("exhaustive", "long") if name not in config.getoption("markexpr")]
    left_out = [item for item in items if any(item.get_closest_marker(name) for name in silent)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]
