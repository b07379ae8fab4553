"""The engine's words on a failed start become a code that a person can be told."""

import pytest

from spawner.core.engine_errors import refusal_of
from spawner.core.model import Code
from spawner.messages import sentence

HOOK = (
    "start: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container "
    "process: error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: "
    "nvidia-container-cli: "
)
CDI = "start: CDI device injection failed: "


@pytest.mark.parametrize(
    ("text", "code", "gpu"),
    [
        pytest.param(HOOK + "device error: GPU-nope: unknown device: unknown", Code.GPU_GONE, "GPU-nope", id="hook"),
        pytest.param(
            CDI + "unresolvable CDI devices nvidia.com/gpu=GPU-7", Code.GPU_GONE, "GPU-7", id="cdi-unresolvable"
        ),
        pytest.param(
            'start: failed to stat CDI host device "/dev/nvidia3": no such file or directory',
            Code.GPU_GONE,
            "/dev/nvidia3",
            id="cdi-node",
        ),
        pytest.param(
            'start: error gathering device information while adding custom device "/x/nvidia1": no such file',
            Code.GPU_GONE,
            "/x/nvidia1",
            id="nodes",
        ),
        pytest.param(HOOK + "device error: GPU is lost", Code.GPU_GONE, "?", id="lost"),
        pytest.param(
            HOOK + "initialization error: nvml error: driver/library version mismatch: unknown",
            Code.GPU_DRIVER_MISMATCH,
            None,
            id="an-update-without-a-reboot",
        ),
        pytest.param(
            'start: could not select device driver "" with capabilities: [[gpu]]',
            Code.GPU_RUNTIME_MISSING,
            None,
            id="no-toolkit",
        ),
        pytest.param(
            HOOK + "initialization error: nvml error: driver not loaded", Code.GPU_RUNTIME_MISSING, None, id="no-driver"
        ),
        pytest.param("start: no space left on device", Code.ENGINE_REFUSED, None, id="something-else"),
    ],
)
def test_an_engine_error_names_its_cause(text, code, gpu):
    refusal = refusal_of(text)
    assert refusal.code is code
    if gpu:
        assert dict(refusal.params)["gpu"] == gpu
    assert "nvidia-container-cli" not in sentence(refusal)


def test_a_text_that_is_not_known_is_passed_on_short_and_printable():
    why = str(dict(refusal_of("start: \x1b[31m" + "x" * 1000).params)["why"])
    assert "\x1b" not in why
    assert len(why) == 300


def test_after_a_driver_update_the_person_is_told_who_can_help():
    assert "administrator must reboot" in sentence(refusal_of("Driver/library version mismatch"))
