"""Makes all checks side by side. One that hangs or breaks is a finding; it holds up neither the others nor the end."""

import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence

from spawner.doctor.machine import AGAIN, Check, Machine, NotLookedAtError, fail, warn
from spawner.findings import Finding

__all__ = ["Told", "examine"]

Told = Callable[[Collection[str]], None]
_REPORT = "look at its words; where they make no sense, report them as a bug of gpucampus"


def examine(machine: Machine, checks: Sequence[Check], told: Told = lambda _left: None) -> tuple[Finding, ...]:
    """Make the checks and give their findings in the checks' order.

    Parameters
    ----------
    machine
        What is looked at.
    checks
        Those that need settings are left out where there are none.
    told
        Called with the names of the checks that are still being made, whenever one has ended.
    """
    made = [check for check in checks if machine.settings is not None or not check.needs_settings]
    answers: queue.SimpleQueue[tuple[str, tuple[Finding, ...]]] = queue.SimpleQueue()
    started = time.monotonic()
    for check in made:
        # a daemon, since a thread that hangs must not hold up the end of the process
        threading.Thread(target=lambda one=check: answers.put((one.name, _made(one, machine))), daemon=True).start()
    found: dict[str, tuple[Finding, ...]] = {}
    while left := [check for check in made if check.name not in found]:
        told([check.name for check in left])
        deadline = started + min(check.limit_s for check in left)
        try:
            name, findings = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found.setdefault(name, findings)
        except queue.Empty:
            over = time.monotonic() - started
            found |= {check.name: (_hangs(check),) for check in left if check.limit_s <= over}
    return tuple(finding for check in made for finding in found[check.name])


def _made(check: Check, machine: Machine) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(machine))
    except NotLookedAtError as error:
        return (warn(check.name, f"not looked at, since {error}", AGAIN),)
    except Exception as error:  # noqa: BLE001 - the other checks must be told all the same
        return (fail(check.name, f"this check broke: {type(error).__name__}: {error}", _REPORT),)


def _hangs(check: Check) -> Finding:
    return fail(check.name, f"this check did not come back within {check.limit_s:g} s", check.hangs)
