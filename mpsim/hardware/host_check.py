"""The emulator held against this processor, in a process of its own, which an instruction may end.

Run as a module, it is that process: arguments in JSON, a line of JSON for each group that begins and each outcome.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mpsim.hardware.host import GROUPS, Plan, unavailable
from mpsim.hardware.replaying import Outcome, by_row, replay_set
from mpsim.modes import unknown

__all__ = ["validate_host"]


def validate_host(
    plan: Plan | None = None, groups: Sequence[str] = (), progress: Callable[[str], None] | None = None
) -> list[Outcome]:
    """Execute this processor's instructions in a process of its own and compare the emulator with them, bit for bit.

    Parameters
    ----------
    plan : Plan, optional
    groups : names of `mpsim.hardware.host.GROUPS`
        All unless given.
    progress : callable, optional
        Called with the title of each group as it begins.

    Returns
    -------
    list of Outcome
        A group whose instruction is missing, or ends the process, counts as skipped, with the reason.
        After a sudden end the groups that are left get another process.

    Raises
    ------
    ValueError
        There is no such group.
    """
    waiting = list(groups or GROUPS)
    for name in waiting:
        if name not in GROUPS:
            raise unknown("one of groups", name, GROUPS)
    outcomes: list[Outcome] = []
    while waiting:
        running = ""
        lines = _process(plan or Plan(), waiting)
        for told in lines:
            if "began" in told:
                running = told["began"]
                waiting.remove(running)
                if progress:
                    progress(GROUPS[running].title)
            elif "ended" in told:
                name = running or waiting.pop(0)
                outcomes.append(Outcome(row=GROUPS[name].title, skipped=told["ended"], ended=True))
            else:
                outcomes.append(Outcome(**told["outcome"]))
    return outcomes


def _process(plan: Plan, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what a new process says about groups; at last, if it did not reach the end, why."""
    task = json.dumps({"plan": dataclasses.asdict(plan), "groups": list(names)})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __name__, task]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
            said = process.stderr.read().strip().splitlines()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        yield {"ended": _reason(process.returncode, said)}


def _reason(code: int, said: Sequence[str]) -> str:
    """Return why a process ended early."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the process was ended by {signal.Signals(-code).name}"
    return f"the process ended with code {code}: {said[-1] if said else 'it said nothing'}"


def _main(task: str) -> None:
    asked = json.loads(task)
    plan = Plan(**asked["plan"])
    for name in asked["groups"]:
        print(json.dumps({"began": name}), flush=True)
        group = GROUPS[name]
        if why := unavailable(group):
            outcomes = [Outcome(row=group.title, skipped=why)]
        else:
            outcomes = by_row(replay_set(part) for part in group.sets(plan))
        for outcome in outcomes:
            print(json.dumps({"outcome": dataclasses.asdict(outcome)}), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
