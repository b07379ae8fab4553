"""Why a server ended: the engine's flag alone is not an answer."""

import pytest

from spawner.core.exits import EndCode, Final, why_ended


@pytest.mark.parametrize(
    ("status", "oom", "error", "code"),
    [
        pytest.param(137, True, "", EndCode.OUT_OF_MEMORY, id="process-1-ran-out-of-memory"),
        pytest.param(0, True, "", EndCode.FINISHED, id="only-a-child-ran-out-of-memory"),
        pytest.param(143, True, "", EndCode.STOPPED, id="stopped-long-after-a-child-ran-out"),
        pytest.param(137, False, "", EndCode.KILLED, id="killed-from-outside"),
        pytest.param(143, False, "", EndCode.STOPPED, id="stopped"),
        pytest.param(128, False, "could not select device driver", EndCode.NOT_STARTED, id="no-hook"),
        pytest.param(127, False, "", EndCode.NOT_STARTED, id="no-such-command"),
        pytest.param(1, False, "", EndCode.FAILED, id="ended-with-an-error"),
        pytest.param(0, False, "", EndCode.FINISHED, id="ended-by-itself"),
    ],
)
def test_why_ended(status, oom, error, code):
    assert why_ended(Final(exit_code=status, oom_killed=oom, error=error, memory_bytes=1 << 30)).code is code


def test_out_of_memory_carries_the_limit():
    end = why_ended(Final(exit_code=137, oom_killed=True, error="", memory_bytes=64 << 20))
    assert dict(end.params) == {"memory": 64 << 20}
