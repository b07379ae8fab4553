"""Each reason not to begin is named, with its remedy; what is well goes on."""

import os
import socket
from pathlib import Path

import pytest

from deploy import preflight
from deploy.preflight import GIB
from spawner.findings import Finding, Status

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL


def release(name: str, kind: str, version: str = "", like: str = "") -> str:
    return f'PRETTY_NAME="{name}"\nID={kind}\nVERSION_ID="{version}"\nID_LIKE="{like}"\n'


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        pytest.param(release("Debian GNU/Linux 12 (bookworm)", "debian", "12"), OK, "bookworm", id="debian-12"),
        pytest.param(release("Debian GNU/Linux 13 (trixie)", "debian", "13"), OK, "trixie", id="debian-13"),
        pytest.param(release("Ubuntu 24.04.3 LTS", "ubuntu", "24.04", "debian"), OK, "24.04", id="ubuntu-24.04"),
        pytest.param(release("Debian GNU/Linux 11 (bullseye)", "debian", "11"), FAIL, "too old", id="debian-11"),
        pytest.param(release("Ubuntu 22.04.5 LTS", "ubuntu", "22.04", "debian"), FAIL, "too old", id="ubuntu-22.04"),
        pytest.param(release("Debian GNU/Linux forky/sid", "debian"), WARN, "untried", id="debian-testing"),
        pytest.param(release("Ubuntu 25.10", "ubuntu", "25.10", "debian"), WARN, "untried", id="ubuntu-newer"),
        pytest.param(release("Linux Mint 22", "linuxmint", "22", "ubuntu debian"), WARN, "Mint", id="derivative"),
        pytest.param(release("Rocky Linux 9.4", "rocky", "9.4", "rhel centos fedora"), FAIL, "Rocky", id="rocky"),
        pytest.param("", FAIL, "unknown system is neither", id="no-os-release"),
    ],
)
def test_distributions_are_supported_untried_or_refused(text, status, words):
    found = preflight.distribution(text)
    assert found.status is status
    assert words in found.text
    if status is not OK:
        assert "Debian 12, Debian 13 or Ubuntu 24.04" in found.remedy


@pytest.mark.parametrize(("version", "status"), [((3, 10), FAIL), ((3, 11), OK), ((3, 13), OK), ((4, 0), OK)], ids=str)
def test_pythons_from_3_11_on_will_do(version, status):
    assert preflight.python(version).status is status


@pytest.mark.parametrize(
    ("gib", "status", "words"),
    [
        pytest.param(8, OK, "8.0 GiB are free at /srv", id="enough"),
        pytest.param(7.9, WARN, "`plain` takes its place", id="for-plain"),
        pytest.param(3, WARN, "3.0 GiB", id="just-for-plain"),
        pytest.param(2.9, FAIL, "smallest demo needs 3", id="too-little"),
    ],
)
def test_room_decides_what_is_built(gib, status, words):
    found = preflight.disk(int(gib * GIB), Path("/srv"))
    assert (found.status, words in found.text) == (status, True)


def test_room_is_that_of_the_place_where_a_folder_will_be_made(tmp_path):
    assert preflight.free_bytes(tmp_path / "not/yet/there") > 0


DOCKER = {"MemoryLimit": True, "ServerVersion": "20.10.24", "DockerRootDir": "/var/lib/docker"}
SECURE = ["name=seccomp,profile=default", "name=cgroupns"]


@pytest.mark.parametrize(
    ("info", "components", "words", "remedy"),
    [
        pytest.param({"SecurityOptions": [*SECURE, "name=rootless"]}, [], "rootless", "docker.io", id="rootless"),
        pytest.param({"SecurityOptions": [*SECURE, "name=userns"]}, [], "userns-remap", "daemon.json", id="userns"),
        pytest.param(
            {"DockerRootDir": "/var/snap/docker/common/var-lib-docker"},
            [],
            "is a snap",
            "snap remove docker",
            id="snap",
        ),
        pytest.param({}, [{"Name": "Podman Engine"}], "Podman", "podman.socket", id="podman"),
        pytest.param({"MemoryLimit": False}, [], "cannot limit memory", "cgroup_enable=memory", id="no-memory-cgroup"),
        pytest.param({}, [{"Name": "Engine"}, {"Name": "containerd"}], "", "", id="docker"),
        pytest.param({"DockerRootDir": "/srv/snapshots/docker"}, [], "", "", id="no-snap-by-its-name-alone"),
        pytest.param({"SecurityOptions": None}, None, "", "", id="an-old-engine-says-less"),
    ],
)
def test_engines_that_cannot_serve_us_are_named(info, components, words, remedy):
    found = preflight.engine(DOCKER | {"SecurityOptions": SECURE} | info, {"Components": components})
    assert found.status is (FAIL if words else OK)
    assert words in found.text
    assert remedy in found.remedy


def fixture_machine(root: Path, listening: dict[int, tuple[int, str] | None], other: str = "01") -> Path:
    """Files of /proc as the kernel shows them; None is a socket of a process that cannot be seen."""
    (root / "proc/net").mkdir(parents=True)
    lines = ["  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"]
    for inode, (port, holder) in enumerate(listening.items(), start=100):
        rest = f"00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0 100 0 0 10 0"
        lines.append(f"   0: 0100007F:{port:04X} {rest}")
        lines.append(f"   0: 0100007F:{port + 1:04X} {rest.replace(' 0A ', f' {other} ').replace(str(inode), '7')}")
        if holder is not None:
            process = root / f"proc/{holder[0]}"
            (process / "fd").mkdir(parents=True)
            (process / "fd/3").symlink_to(f"socket:[{inode}]")
            (process / "comm").write_text(f"{holder[1]}\n")
    (root / "proc/net/tcp").write_text("\n".join(lines) + "\n")
    return root


def test_a_port_that_is_taken_is_refused_with_the_program_that_has_it(tmp_path):
    root = fixture_machine(tmp_path, {8000: (812, "nginx"), 8001: (900, "node"), 8081: None})
    wanted = {8000: "the proxy", 8001: "the proxy's API", 8010: "the sign-in", 8081: "the hub"}
    found = preflight.ports(wanted, ours=[900], root=root)
    assert [one.status for one in found] == [FAIL, OK, OK, FAIL]
    assert found[0].text == "port 8000 (the proxy) is taken by nginx (process 812)"
    assert "GPUCAMPUS_PORT=9000" in found[0].remedy
    assert "another container" in found[3].text


def test_a_connection_from_a_port_is_no_listener(tmp_path):
    root = fixture_machine(tmp_path, {7999: (812, "curl")})
    assert [one.status for one in preflight.ports({8000: "the proxy"}, [], root)] == [OK]


def test_a_real_listener_is_found_by_its_process():
    with socket.create_server(("127.0.0.1", 0)) as one:
        (found,) = preflight.ports({one.getsockname()[1]: "the proxy"}, [])
        assert f"(process {os.getpid()})" in found.text
        (found,) = preflight.ports({one.getsockname()[1]: "the proxy"}, [os.getpid()])
        assert found.status is OK


def checkout(folder: Path) -> Path:
    (folder / "deploy").mkdir(parents=True)
    (folder / "deploy/run").touch()
    return folder


def test_a_state_folder_is_of_one_hub_and_one_checkout(tmp_path):
    state, mine, other = tmp_path / "state", checkout(tmp_path / "mine"), checkout(tmp_path / "other")
    state.mkdir()
    assert preflight.belongs(state, mine, "gpucampus").status is OK
    preflight.claim(state, mine, "gpucampus")
    assert preflight.belongs(state, mine, "gpucampus").status is OK
    moved = preflight.belongs(state, mine, "gpucampus-9000")
    assert (moved.status, "belongs to the hub gpucampus," in moved.text) == (FAIL, True)
    taken = preflight.belongs(state, other, "gpucampus")
    assert (taken.status, str(mine) in taken.text) == (FAIL, True)
    assert "GPUCAMPUS_STATE" in taken.remedy


def test_a_checkout_that_was_moved_keeps_its_state(tmp_path):
    state, old = tmp_path / "state", checkout(tmp_path / "old")
    state.mkdir()
    preflight.claim(state, old, "gpucampus")
    assert preflight.belongs(state, old.rename(tmp_path / "new"), "gpucampus").status is OK


def test_a_network_with_another_hub_s_servers_is_refused():
    assert preflight.bridge("gpucampus", "gpucampus", []).status is OK
    assert preflight.bridge("gpucampus", "gpucampus", ["gpucampus", "gpucampus"]).status is OK
    found = preflight.bridge("gpucampus", "gpucampus", ["gpucampus", "lab"])
    assert (found.status, "(lab)" in found.text) == (FAIL, True)


def test_a_state_folder_that_root_cannot_give_away_files_in_is_refused(tmp_path, monkeypatch):
    def squashed(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("deploy.preflight.os.chown", squashed)
    found = preflight.folder(tmp_path / "state")
    assert (found.status, "local disk" in found.remedy) == (FAIL, True)
    monkeypatch.setattr("deploy.preflight.os.chown", lambda *_: None)
    assert preflight.folder(tmp_path / "state").status is OK


def test_only_what_is_not_well_is_told_and_notes_are_marked():
    found = [
        Finding("a", OK, "fine"),
        Finding("b", WARN, "this is odd", "look"),
        Finding("c", FAIL, "this is bad", "end it"),
    ]
    assert preflight.tell(found).splitlines() == ["Note: This is odd. To do: look.", "This is bad. To do: end it."]
    assert not preflight.tell(found[:1])
