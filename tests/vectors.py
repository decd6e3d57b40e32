"""Where recorded test vectors lie that are too large for the repository."""

import os
from pathlib import Path

import pytest

__all__ = ["vectors"]


def vectors(*parts: str) -> Path:
    """Return the path of a recorded file.

    The folder is ``$MPSIM_VECTORS``, by default ``../shared/vectors`` beside the checkout. Where there is no such
    folder the calling test is skipped; a missing file in an existing folder is a failure.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "vectors"
    folder = Path(os.environ.get("MPSIM_VECTORS") or default)
    if not folder.is_dir():
        pytest.skip(f"no folder of test vectors at {folder}; MPSIM_VECTORS names another")
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.fail(f"{path} is missing from the test vectors", pytrace=False)
    return path
