"""All checks side by side: none of them can hold up the others, or the command."""

import time
from threading import Event

import pytest

from spawner.doctor.machine import Check, Later, NotLookedAtError, ok
from spawner.doctor.runner import examine
from spawner.findings import Finding, Status
from tests.doctor.trees import machine_of, settings_of


def check(name: str, look, **more) -> Check:
    return Check(name=name, look=lambda _machine: look(), hangs=f"mend {name}", **more)


def fine(name: str):
    return lambda: [ok(name, "well")]


def breaks() -> list[Finding]:
    raise ZeroDivisionError("by nobody")


def waits() -> list[Finding]:
    raise NotLookedAtError("the engine does not answer")


def test_a_check_that_hangs_is_a_finding_and_ends_with_its_limit(tmp_path):
    never = Event()
    checks = [
        check("hangs", never.wait, needs_settings=False, limit_s=0.3),
        check("goes", fine("goes"), needs_settings=False),
    ]
    started = time.monotonic()
    hangs, goes = examine(machine_of(tmp_path), checks)
    assert time.monotonic() - started < 3
    never.set()
    assert (hangs.status, hangs.remedy) == (Status.FAIL, "mend hangs")
    assert "did not come back within 0.3 s" in hangs.text
    assert goes.status is Status.OK


def test_a_check_that_breaks_or_cannot_be_made_says_so_and_the_others_go_on(tmp_path):
    checks = [check(name, look, needs_settings=False) for name, look in (("b", breaks), ("w", waits), ("f", fine("f")))]
    broken, waiting, good = examine(machine_of(tmp_path), checks)
    assert (broken.status, waiting.status, good.status) == (Status.FAIL, Status.WARN, Status.OK)
    assert "ZeroDivisionError: by nobody" in broken.text
    assert "not looked at, since the engine does not answer" in waiting.text


def test_without_settings_what_needs_them_is_left_out(tmp_path):
    checks = [check("needs", fine("needs")), check("free", fine("free"), needs_settings=False)]
    assert [one.check for one in examine(machine_of(tmp_path), checks)] == ["free"]
    machine = machine_of(tmp_path, settings=settings_of(tmp_path))
    assert [one.check for one in examine(machine, checks)] == ["needs", "free"]


def test_progress_names_what_is_still_being_looked_at(tmp_path):
    told: list[list[str]] = []
    checks = [check(name, fine(name), needs_settings=False) for name in ("a", "b")]
    examine(machine_of(tmp_path), checks, lambda left: told.append(list(left)))
    assert told[0] == ["a", "b"]
    assert len(told[-1]) == 1


def test_what_several_checks_need_is_asked_for_once_and_may_never_come():
    asked: list[int] = []

    def seven() -> int:
        asked.append(1)
        return 7

    value = Later(seven, missing="no seven")
    assert (value.get(), value.get(), len(asked)) == (7, 7, 1)
    never = Event()
    with pytest.raises(NotLookedAtError, match="nobody answers") as caught:
        Later(never.wait, missing="nobody answers", limit_s=0.1).get()
    never.set()
    assert caught.value.why == "nothing was said within 0.1 s"
