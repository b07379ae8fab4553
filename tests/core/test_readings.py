"""Which container a process is in, by the text of its cgroup."""

import pytest

from spawner.core.readings import container_of

ONE, TWO = "a1" * 32, "0f" * 32


@pytest.mark.parametrize(
    ("text", "container"),
    [
        pytest.param(f"12:memory:/docker/{ONE}\n1:name=systemd:/docker/{ONE}\n", ONE, id="v1-cgroupfs"),
        pytest.param(f"4:memory:/system.slice/docker-{ONE}.scope\n", ONE, id="v1-systemd"),
        pytest.param(f"0::/system.slice/docker-{ONE}.scope\n", ONE, id="v2-systemd"),
        pytest.param(f"0::/docker/{ONE}\n", ONE, id="v2-cgroupfs"),
        pytest.param(f"0::/../docker-{ONE}.scope\n", ONE, id="v2-seen-from-another-namespace"),
        pytest.param(f"0::/docker/{ONE}/init.scope\n", ONE, id="systemd-in-the-container"),
        pytest.param(f"3:cpu:/campus/{ONE}\n", ONE, id="cgroup-parent"),
        pytest.param(f"0::/machine.slice/libpod-{ONE}.scope/container\n", ONE, id="podman"),
        pytest.param(f"2:cpu:/docker/{TWO}/docker/{ONE}\n", ONE, id="engine-in-a-container"),
        pytest.param(f"9:misc:/\n8:memory:/docker/{ONE}\n0::/system.slice/containerd.service\n", ONE, id="hybrid"),
        pytest.param("0::/user.slice/user-1000.slice/session-3.scope\n", "", id="login-session"),
        pytest.param("8:pids:/\n4:memory:/process_api/f1803c4c5f88ee4935e1672bc2e62824\n", "", id="a-shorter-number"),
        pytest.param(f"0::/system.slice/{ONE}ab.service\n", "", id="a-longer-number"),
        pytest.param(f"0::/{ONE}.service\n", "", id="a-service-that-is-called-so"),
        pytest.param("", "", id="nothing"),
    ],
)
def test_a_container_is_found_by_its_cgroup(text, container):
    assert container_of(text) == container
