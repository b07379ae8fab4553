"""A finding tells the operator what to do, unless there is nothing to do."""

import pytest

from spawner.findings import Finding, Status, worst


@pytest.mark.parametrize(("status", "remedy"), [(Status.OK, "reboot"), (Status.WARN, ""), (Status.FAIL, "")])
def test_what_is_not_ok_needs_a_remedy_and_what_is_ok_needs_none(status, remedy):
    with pytest.raises(ValueError, match="engine"):
        Finding("engine", status, "Docker 20.10", remedy)


def test_one_failure_outweighs_many_warnings():
    fine, warning = Finding("a", Status.OK, "fine"), Finding("b", Status.WARN, "old", "update it")
    assert worst([]) is Status.OK
    assert worst([fine, warning, fine]) is Status.WARN
    assert worst([Finding("c", Status.FAIL, "gone", "bring it"), warning]) is Status.FAIL
