"""Why a server ended: the engine's flag alone is not an answer."""

import pytest

from spawner.core.exits import WORDS_TELL, EndCode, Final, why_ended
from spawner.core.health import STATUS, HealthCode


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


UNHEALTHY = 'gpucampus-health: {"code": "driver-old", "driver": "520.61", "needed": "525.60.13"}'


@pytest.mark.parametrize(
    ("status", "words", "code"),
    [
        pytest.param(STATUS, UNHEALTHY, HealthCode.DRIVER_OLD, id="by-the-check"),
        pytest.param(STATUS, "something else", EndCode.FAILED, id="status-without-the-words"),
        pytest.param(1, UNHEALTHY, EndCode.FAILED, id="words-without-the-status"),
        pytest.param(0, UNHEALTHY, EndCode.FINISHED, id="words-of-a-server-that-ended-well"),
    ],
)
def test_the_check_at_the_start_is_told_by_status_and_words_together(status, words, code):
    end = why_ended(Final(exit_code=status, oom_killed=False, error="", memory_bytes=1, words=words))
    assert end.code is code
    assert STATUS in WORDS_TELL


def test_a_program_that_is_not_in_the_image_is_named_by_the_containers_last_words():
    final = Final(exit_code=127, oom_killed=False, error="", memory_bytes=1, words="a\nsh: 1: exec: lab: not found\n\n")
    assert dict(why_ended(final).params) == {"error": "sh: 1: exec: lab: not found", "status": 127}
