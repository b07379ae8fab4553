"""The command that looks at the whole machine: doctor."""

import sys
from collections.abc import Collection
from dataclasses import asdict

from rich.console import Console

from spawner.cli.show import AsJSON, app, end, print_json, print_table
from spawner.doctor import CHECKS, as_the_hub, examine, this_machine
from spawner.findings import Finding, Status

__all__ = ["doctor"]


@app.command()
def doctor(*, as_json: AsJSON = False) -> None:
    """Look at everything that the hub stands on, and say what is wrong and what to do about it.

    Works while the hub is down or the settings are wrong. Ends with 1 where something fails; warnings alone are 0.
    """
    machine = this_machine()
    with as_the_hub(machine):
        if as_json or not sys.stderr.isatty():
            found = examine(machine, CHECKS)
        else:
            with Console(stderr=True).status("looking") as line:
                found = examine(machine, CHECKS, lambda left: line.update(_waits(left)))
    simulated = bool(machine.settings and machine.settings.gpus.simulated)
    failed = [f"{finding.check}: {finding.text}" for finding in found if finding.status is Status.FAIL]
    if as_json:
        print_json({"simulated": simulated, "checks": [asdict(finding) for finding in found], "findings": failed})
    else:
        columns = ("", "check", "found", "what to do")
        print_table(machine.settings, _title(found), columns, [_row(finding) for finding in found])
    end(failed)


def _waits(left: Collection[str]) -> str:
    return f"looking at {', '.join(left)}"


def _row(finding: Finding) -> tuple[str, str, str, str]:
    return finding.status.value, finding.check, finding.text, finding.remedy


def _title(found: Collection[Finding]) -> str:
    counts = [(status, sum(1 for finding in found if finding.status is status)) for status in reversed(Status)]
    return ", ".join(f"{number} {status.value}" for status, number in counts)
