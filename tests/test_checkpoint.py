import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bits import assert_same_bits
from mpsim import amp, checkpoint, nn, optim
from mpsim.optim import lr_scheduler
from mpsim.tensor import Tensor


class Run:
    """A training run with everything that can be saved."""

    def __init__(self, kind: str = "AdamW", fmt: str = "bf16", **arithmetic: Any) -> None:
        self._fmt = fmt
        self.model = nn.Sequential(nn.Linear(3, 4, rng=0), nn.Tanh(), nn.Linear(4, 2, rng=1)).to(fmt)
        self.optimizer = getattr(optim, kind)(self.model.parameters(), lr=0.1, **arithmetic)
        self.scaler = amp.GradScaler(init_scale=1024.1, growth_interval=2, growth_factor=1.7)
        self.schedule = lr_scheduler.CosineAnnealingLR(self.optimizer, 5)
        self.generator = np.random.default_rng(4)

    @property
    def parts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_fmt"}

    def train(self, steps: int) -> list[np.ndarray]:
        for _ in range(steps):
            x, y = self.generator.normal(size=(4, 3)), self.generator.integers(0, 2, 4)
            self.optimizer.zero_grad()
            with amp.autocast("bf16", unit="native", enabled=self._fmt != "fp64"):
                loss = nn.functional.cross_entropy(self.model(Tensor(x, format=self._fmt)), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
        return [p.data for p in self.model.parameters()]

    def save(self, path: Path, **extra: Any) -> None:
        checkpoint.save(path, **self.parts, extra=extra)

    def state(self) -> Any:
        return [
            self.model.state_dict(),
            self.optimizer.state_dict(),
            self.scaler.state_dict(),
            self.schedule.state_dict(),
            self.generator.bit_generator.state,
        ]


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
@pytest.mark.parametrize(
    "arithmetic",
    [
        {"fmt": "fp32"},
        {"fmt": "fp64"},
        {},
        {"update": "stochastic", "rng": 3},
        {"update": "kahan"},
        {"update": "master", "state_format": "bf16", "state_rounding": "stochastic", "rng": 5},
    ],
    ids=str,
)
def test_a_run_goes_on_bit_for_bit(kind: str, arithmetic: dict[str, Any], tmp_path: Path):
    run = Run(kind, **arithmetic)
    run.train(3)
    run.save(tmp_path / "run.npz", epoch=3)
    want = run.train(4)
    other = Run(kind, **arithmetic)
    other.train(1)
    assert checkpoint.load(tmp_path / "run.npz", **other.parts) == {"epoch": 3}
    got = other.train(4)
    for a, b in zip(got, want, strict=True):
        assert_same_bits(a, b)
    np.testing.assert_equal(other.state(), run.state())


def test_the_old_file_stays_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run, path = Run(), tmp_path / "run.npz"
    run.save(path)
    before = path.read_bytes()

    def broken(file: Any, **arrays: Any) -> None:
        file.write(b"half a file")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="no space left"):
        run.save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run.npz"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
@pytest.mark.skipif(os.name != "posix", reason="a umask")
def test_a_file_may_be_read_by_those_whom_the_umask_leaves(umask: int, mode: int, tmp_path: Path):
    path = tmp_path / "run.npz"
    before = os.umask(umask)
    try:
        checkpoint.save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, 0.9, -1])
def test_a_truncated_file_is_refused_and_changes_nothing(cut: float, tmp_path: Path):
    run, path = Run(), tmp_path / "run.npz"
    run.train(1)
    run.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole)) if isinstance(cut, float) else cut])
    run.train(1)
    before = run.state()
    with pytest.raises(ValueError, match=r"run.npz is damaged"):
        checkpoint.load(path, **run.parts)
    np.testing.assert_equal(run.state(), before)


def test_a_flipped_bit_in_an_array_is_found(tmp_path: Path):
    run, path = Run(), tmp_path / "run.npz"
    run.train(1)
    run.save(path)
    data = bytearray(path.read_bytes())
    weights = run.model.state_dict()["0.weight"].tobytes()
    place = data.find(weights)
    assert place > 0
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        checkpoint.load(path, **run.parts)


def test_other_files_are_no_checkpoints(tmp_path: Path):
    run = Run()
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.npz", **run.parts)
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    np.savez(tmp_path / "future.npz", meta=np.array('{"version": 99}'))
    for name in ("text", "arrays", "future"):
        with pytest.raises(ValueError, match=f"{name}.npz is damaged, or no checkpoint of version 1"):
            checkpoint.load(tmp_path / f"{name}.npz", **run.parts)


def test_an_array_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path):
    header = b"\x93NUMPY\x01\x00\x76\x00"
    header += b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "run.npz", "w") as archive:
        archive.writestr("meta.npy", header + b"\0" * 8)
    with pytest.raises(ValueError, match=r"run.npz is damaged, or no checkpoint of version 1 \(meta claims"):
        checkpoint.load(tmp_path / "run.npz")


def without(run: Run, part: str) -> dict[str, Any]:
    return {name: value for name, value in run.parts.items() if name != part}


@pytest.mark.parametrize("part", ["model", "optimizer", "scaler", "schedule", "generator"])
def test_every_part_that_was_saved_is_asked_for(part: str, tmp_path: Path):
    run, path = Run(), tmp_path / "run.npz"
    run.save(path)
    with pytest.raises(ValueError, match=f"has a {part}: pass {part}="):
        checkpoint.load(path, **without(run, part))
    checkpoint.save(path, **without(run, part))
    with pytest.raises(ValueError, match=f"has no {part}: leave {part} out"):
        checkpoint.load(path, **run.parts)


def test_a_part_that_does_not_fit_leaves_all_parts_as_they_were(tmp_path: Path):
    run, path = Run(), tmp_path / "run.npz"
    run.train(2)
    run.save(path)
    other = Run()
    other.train(1)
    wide, sgd, step, legacy = Run(fmt="fp16"), Run("SGD"), Run(), Run()
    kahan = Run(update="kahan")
    step.schedule = lr_scheduler.StepLR(step.optimizer, 2)  # type: ignore[assignment]
    legacy.generator = np.random.Generator(np.random.MT19937(1))
    disabled = Run()
    disabled.scaler = amp.GradScaler(enabled=False)
    for wrong, message in [
        (wide, "other names or formats"),
        (sgd, "optimizer was a AdamW"),
        (kahan, "update is 'nearest'"),
        (step, "load_state_dict"),
        (legacy, "generator is a PCG64"),
        (disabled, "scaler was enabled"),
    ]:
        before = wrong.state()
        with pytest.raises(ValueError, match=message):
            checkpoint.load(path, **wrong.parts)
        np.testing.assert_equal(wrong.state(), before)


def test_what_json_cannot_hold_is_refused(tmp_path: Path):
    with pytest.raises(TypeError, match="extra has a object"):
        checkpoint.save(tmp_path / "run.npz", extra={"x": object()})
    assert os.listdir(tmp_path) == []
    checkpoint.save(tmp_path / "run.npz", extra={"loss": np.float64(0.1), "best": float("inf")})
    assert checkpoint.load(tmp_path / "run.npz") == {"loss": 0.1, "best": float("inf")}
