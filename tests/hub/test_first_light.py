"""What the first issue promises, seen from outside: sign in, choose, hold one's own GPU, lose nothing in a crash."""

import errno
import json
import resource
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest

from tests.hub.person import Person, sign_in
from tests.rig.demo_hub import DemoHub
from tests.rig.waiting import wait_until_sync

pytestmark = [pytest.mark.docker, pytest.mark.hub, pytest.mark.timeout(420)]

ONE_GPU = {"variant": "cpu", "mode": "exclusive", "gpus": 1}
NO_GPU = {"variant": "cpu"}
SEEN = """
import glob, json, os, pynvml
try:
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
except pynvml.NVMLError as error:
    uuids = str(error)
print(json.dumps({"nodes": sorted(n for n in glob.glob("/dev/nvidia[0-9]*")), "uuids": uuids,
                  "visible": os.environ.get("NVIDIA_VISIBLE_DEVICES")}))
"""


def seen_by(person: Person) -> dict[str, Any]:
    """GPU nodes and UUIDs as a program in the server sees them."""
    return dict(json.loads(person.run("python3", "-c", SEEN)))


def leases(hub: DemoHub) -> list[dict[str, object]]:
    """Leases as the operator's command line lists them."""
    answer = json.loads(hub.command("-m", "spawner.cli", "leases", "--json"))
    return list(answer["leases"])


def number_of_containers(hub: DemoHub) -> int:
    """Those with a lease; the network's self-check has containers of its own for a moment."""
    return len(hub.engine.client.containers.list(all=True, filters={"label": "gpucampus.lease"}))


def remembered(hub: DemoHub, name: str) -> object:
    """The options that the hub has stored for a person's default server."""
    with sqlite3.connect(f"file:{hub.state / 'hub.sqlite'}?mode=ro", uri=True) as database:
        row = database.execute(
            "select user_options from spawners join users on users.id = user_id "
            "where users.name = ? and spawners.name = ''",
            (name,),
        ).fetchone()
    return json.loads(row[0]) if row and row[0] else {}


def test_two_people_hold_different_gpus_and_see_no_other(people, stopped, demo_hub):
    student, teacher = people["student"], people["teacher"]
    for person in (student, teacher):
        assert person.press_start(ONE_GPU).status_code in (201, 202)
    for person in (student, teacher):
        person.wait_ready()
    first, second = seen_by(student), seen_by(teacher)
    assert len(first["uuids"]) == len(second["uuids"]) == 1
    assert first["uuids"] != second["uuids"]
    assert len(first["nodes"]) == len(second["nodes"]) == 1
    assert first["nodes"] != second["nodes"]
    listed = {lease["user"]: lease["gpus"] for lease in leases(demo_hub)}
    assert listed == {"student": first["uuids"], "teacher": second["uuids"]}
    for person in (student, teacher):
        assert person.lab().status_code == httpx.codes.OK


def test_one_more_than_exist_is_refused_before_any_container_is_made(people, stopped, demo_hub):
    people["student"].start(ONE_GPU)
    people["teacher"].start(ONE_GPU)
    before = number_of_containers(demo_hub)
    answer = people["researcher"].press_start({"variant": "cpu", "mode": "exclusive", "gpus": 2})
    assert answer.status_code == httpx.codes.CONFLICT, answer.text
    assert "2 of 3 are leased" in answer.json()["message"]
    assert number_of_containers(demo_hub) == before


def test_a_person_holds_no_more_than_their_role_allows_over_all_servers(people, stopped):
    people["student"].start(ONE_GPU)
    answer = people["student"].press_start(ONE_GPU, server="second")
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "hold 1" in answer.json()["message"]


def test_who_asked_for_no_gpu_sees_none(people, stopped):
    people["student"].start(NO_GPU)
    seen = seen_by(people["student"])
    assert seen["nodes"] == []
    assert isinstance(seen["uuids"], str), "NVML finds no driver"
    assert seen["visible"] == "void"


MIG_SEEN = """
import json, pynvml
pynvml.nvmlInit()
found = []
for index in range(pynvml.nvmlDeviceGetCount()):
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    for part in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, part)))
        except pynvml.NVMLError_NotFound:
            break
print(json.dumps(found))
"""


def test_who_holds_a_mig_instance_sees_that_one_alone(people, stopped, demo_hub):
    student, teacher = people["student"], people["teacher"]
    for person in (student, teacher):
        person.start({"variant": "cpu", "mode": "mig", "profile": "3g.20gb"})
    seen = {person.name: json.loads(person.run("python3", "-c", MIG_SEEN)) for person in (student, teacher)}
    assert {lease["user"]: lease["gpus"] for lease in leases(demo_hub)} == seen
    assert [len(uuids) for uuids in seen.values()] == [1, 1]
    assert seen["student"] != seen["teacher"]


def test_shares_are_on_one_gpu_and_never_beside_an_exclusive_lease(people, stopped, demo_hub):
    people["student"].start(ONE_GPU)
    for name in ("teacher", "researcher"):
        people[name].start({"variant": "cpu", "mode": "shared"})
    held = {lease["user"]: lease["gpus"] for lease in leases(demo_hub)}
    assert held["teacher"] == held["researcher"]
    assert held["teacher"] != held["student"]
    assert seen_by(people["teacher"])["uuids"] == held["teacher"]


def test_a_mode_that_the_role_does_not_have_is_refused(people, stopped):
    answer = people["student"].press_start({"variant": "cpu", "mode": "shared"})
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert "shared" in answer.json()["message"]


def deep(levels: int) -> object:
    return [deep(levels - 1)] if levels else []


FORGED: Mapping[str, tuple[object, str]] = {
    "unknown-variant": ({"variant": "nope"}, "nope"),
    "path-as-variant": ({"variant": "../../etc"}, "variant"),
    "99-gpus": ({"mode": "exclusive", "gpus": 99}, "99"),
    "negative-gpus": ({"mode": "exclusive", "gpus": -1}, "gpus"),
    "gpus-as-text": ({"mode": "exclusive", "gpus": "1"}, "gpus"),
    "gpus-as-true": ({"mode": "exclusive", "gpus": True}, "gpus"),
    "gpus-without-mode": ({"gpus": 1}, "gpus"),
    "mode-not-offered": ({"mode": "shared", "gpus": 1}, "mode"),
    "environment": ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "env"),
    "environment-2": ({"environment": {"LD_PRELOAD": "/tmp/x.so"}}, "environment"),
    "mounts": ({"mounts": [{"source": "/", "target": "/host"}]}, "mounts"),
    "image": ({"image": "evil:latest"}, "image"),
    "negative-memory": ({"memory": -1}, "memory"),
    "absurd-memory": ({"memory": "900T"}, "memory"),
    "memory-above-the-role": ({"memory": "5G"}, "memory"),
    "memory-as-list": ({"memory": ["1G"]}, "memory"),
    "templates": ({"variant": "{user.name}"}, "variant"),
    "a-megabyte": ({"variant": "x" * (1 << 20)}, "too large"),
    "deeply-nested": ({"variant": deep(200)}, "variant"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_choice_gets_400_with_a_reason_makes_nothing_and_is_not_remembered(people, demo_hub, stopped, case):
    options, word = FORGED[case]
    student = people["student"]
    before, kept = number_of_containers(demo_hub), remembered(demo_hub, "student")
    answer = student.press_start(options)
    assert answer.status_code == httpx.codes.BAD_REQUEST, answer.text[:300]
    assert word in answer.json()["message"]
    assert number_of_containers(demo_hub) == before
    assert remembered(demo_hub, "student") == kept


@pytest.mark.parametrize("options", ["text", 5, [1, 2]], ids=["text", "number", "list"])
def test_options_that_are_no_object_are_refused(people, demo_hub, stopped, options):
    answer = people["student"].press_start(options)
    assert answer.status_code == httpx.codes.BAD_REQUEST, answer.text[:300]
    assert number_of_containers(demo_hub) == 0


def test_a_link_never_starts_a_gpu(people, demo_hub, stopped):
    page = people["student"].browser.get(
        f"{demo_hub.url}/hub/spawn/student", params={"opt-variant": "cpu", "opt-gpus": "1", "opt-mode": "exclusive"}
    )
    assert "press Start" in page.text
    assert number_of_containers(demo_hub) == 0
    assert people["student"].server() == {}


def first(person: Person, *paths: str) -> str:
    """The content of the first of these files that exists in the container."""
    return person.run("sh", "-c", "; ".join(f"[ -r {path} ] && cat {path} && exit" for path in paths)).strip()


def test_every_limit_holds_inside(people, stopped):
    student = people["student"]
    student.start({"variant": "cpu", "memory": "1G"})
    cgroup = "/sys/fs/cgroup"
    assert first(student, f"{cgroup}/memory.max", f"{cgroup}/memory/memory.limit_in_bytes") == str(1 << 30)
    swap = first(student, f"{cgroup}/memory.swap.max", f"{cgroup}/memory/memory.memsw.limit_in_bytes")
    assert swap in ("0", str(1 << 30))
    assert first(student, f"{cgroup}/cpu.max", f"{cgroup}/cpu/cpu.cfs_quota_us").split()[0] == "100000"
    assert first(student, f"{cgroup}/pids.max", f"{cgroup}/pids/pids.max") == "512"
    assert student.run("sh", "-c", "df --output=size -B1 /dev/shm | tail -1").strip() == str(1 << 30)
    assert student.run("sh", "-c", "df --output=size -B1 /tmp | tail -1").strip() == str(1 << 30)
    assert student.run("sh", "-c", "df --output=itotal /tmp | tail -1").strip() == "100000"
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = student.run("sh", "-c", "ulimit -c; ulimit -n").split()
    assert files == ["0", "65536"] or (files == ["0", str(most_files)] and most_files < 65536)
    assert student.run("cat", "/proc/1/comm").strip() in ("docker-init", "tini")
    assert student.run("sh", "-c", "cat /proc/1/oom_score_adj").strip() == "500"
    status = dict(
        line.split(":\t", 1) for line in student.run("cat", "/proc/self/status").splitlines() if ":\t" in line
    )
    assert status["CapEff"] == status["CapBnd"] == "0" * 16
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    uid = status["Uid"].split()[0]
    assert 200_000 <= int(uid) <= 299_999
    assert student.run("sh", "-c", "whoami; id -G; pwd; echo $HOME").split() == ["student", uid, *["/home/student"] * 2]
    refused = student.run("sh", "-c", "touch /usr/x 2>&1; touch /x 2>&1; touch /etc/passwd 2>&1; true")
    assert refused.count("Read-only file system") >= 2
    assert "Permission denied" in refused or refused.count("Read-only file system") == 3
    log = student.container().attrs["HostConfig"]["LogConfig"]
    assert log == {"Type": "json-file", "Config": {"max-file": "3", "max-size": "10m"}}


def test_memory_that_is_exceeded_ends_the_program_and_not_the_host(people, stopped):
    student = people["student"]
    student.start({"variant": "cpu", "memory": "512M"})
    eat = "b = bytearray(700 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    status, _ = student.container().exec_run(["python3", "-c", eat])
    assert status == 137
    wait_until_sync(lambda: student.lab().status_code == httpx.codes.OK, 60, "the server itself goes on")


def test_one_container_does_not_reach_another(people, stopped, demo_hub):
    student, teacher = people["student"], people["teacher"]
    student.start(NO_GPU)
    teacher.start(NO_GPU)
    (network,) = teacher.container().attrs["NetworkSettings"]["Networks"].values()
    knock = "import socket; s = socket.socket(); s.settimeout(3); print(s.connect_ex(('%s', %d)))"
    assert student.run("python3", "-c", knock % (network["IPAddress"], 8888)).strip() != "0", "closed"
    assert student.run("python3", "-c", knock % (network["Gateway"], 8081)).strip() == "0", "the hub's API is open"
    with socket.create_server((network["Gateway"], 0)) as door:
        assert student.run("python3", "-c", knock % door.getsockname()[:2]).strip() == str(errno.ECONNREFUSED)
    assert httpx.get(f"http://{network['IPAddress']}:8888/user/teacher/api", timeout=5).status_code == httpx.codes.OK


def test_the_hub_has_proved_at_its_start_what_its_containers_do_not_reach(people, demo_hub):
    log = demo_hub.state / "log/hub.log"
    wait_until_sync(lambda: "network: containers over IPv6" in log.read_text(encoding="utf-8"), 60, "it has looked")
    told = [line for line in log.read_text(encoding="utf-8").splitlines() if " network: containers to " in line]
    assert sum("is refused by our filter" in line for line in told) == 4, told
    assert "network: hub API from containers: 172.30.0.1:8081 answers" in log.read_text(encoding="utf-8")


def test_a_file_survives_stop_and_start_and_the_gpu_is_free_in_between(people, stopped, demo_hub):
    student = people["student"]
    student.start(ONE_GPU)
    student.run("sh", "-c", "echo kept > ~/note.txt")
    student.stop()
    wait_until_sync(lambda: leases(demo_hub) == [], 10, "the lease has ended")
    assert number_of_containers(demo_hub) == 0
    student.start(ONE_GPU)
    assert student.run("cat", "/home/student/note.txt") == "kept\n"


def test_homes_are_their_owners_alone(people, stopped, demo_hub):
    people["student"].start(NO_GPU)
    homes = list((demo_hub.state / "homes").iterdir())
    assert all(home.name.isdecimal() and home.stat().st_uid == int(home.name) for home in homes)
    assert all(home.stat().st_mode & 0o777 == 0o700 for home in homes)
    labels = people["student"].container().labels
    assert labels["gpucampus.user"] == "student"
    assert labels["gpucampus.mode"] == "none"


@pytest.mark.parametrize("how", ["kill", "end"])
def test_a_hub_that_dies_or_ends_loses_nothing(people, stopped, demo_hub, how):
    student, teacher = people["student"], people["teacher"]
    student.start(ONE_GPU)
    teacher.start(ONE_GPU)
    before = {person.name: (person.container().id, seen_by(person)["uuids"]) for person in (student, teacher)}
    held = leases(demo_hub)
    for person in (student, teacher):
        assert person.lab().status_code == httpx.codes.OK, "from now on the server remembers who this is"
    getattr(demo_hub, how)()
    assert student.lab().status_code == httpx.codes.OK, "the proxy goes on without the hub"
    assert leases(demo_hub) == held, "the command line answers without the hub"
    demo_hub.start()
    for person in (student, teacher):
        person.wait_ready()
        assert (person.container().id, seen_by(person)["uuids"]) == before[person.name]
        assert person.lab().status_code == httpx.codes.OK
    assert leases(demo_hub) == held
    answer = people["researcher"].press_start({"variant": "cpu", "mode": "exclusive", "gpus": 2})
    assert answer.status_code == httpx.codes.CONFLICT
    assert "2 of 3 are leased" in answer.json()["message"]
    student.stop()
    assert {lease["user"] for lease in leases(demo_hub)} == {"teacher"}


def test_a_crash_in_the_middle_of_a_start_leaves_a_state_that_the_next_start_repairs(people, stopped, demo_hub):
    student = people["student"]
    student.press_start(ONE_GPU)
    wait_until_sync(lambda: number_of_containers(demo_hub) == 1, 30, "the container is made")
    demo_hub.kill()
    demo_hub.start()
    # either the start was far enough to be taken up again, or it is gone altogether
    wait_until_sync(
        lambda: not student.server() or student.server()["ready"], 90, "the half-made server is adopted or gone"
    )
    if student.server():  # the route follows the state by a moment
        wait_until_sync(lambda: student.lab().status_code == httpx.codes.OK, 30, "the adopted server answers")
    else:
        wait_until_sync(lambda: number_of_containers(demo_hub) == 0, 60, "nothing is left over")
    student.stop()
    student.start(ONE_GPU)
    assert len(leases(demo_hub)) == 1


def test_a_death_reaches_the_hub_at_once_and_frees_the_gpu(people, stopped, demo_hub):
    student = people["student"]
    student.start(ONE_GPU)
    student.container().kill()
    died = time.monotonic()
    wait_until_sync(lambda: not student.server(), 20, "the hub knows that the server has died")
    assert time.monotonic() - died < 15, "by an event, not by the 30 s poll"
    assert leases(demo_hub) == []
    assert number_of_containers(demo_hub) == 0


ODD_NAMES = ["..", "a/../b", "-v", "{server}", "x" * 60, "ünïcode", "a b", "a\nb", "'; drop table users; --", "%2e%2e"]


@pytest.fixture
def odd_people(demo_hub) -> Iterator[None]:
    """Accounts at the provider whose names try everything; all with the student's password and groups."""
    file = demo_hub.state / "demo/users.json"
    original = file.read_text(encoding="utf-8")
    users = json.loads(original)
    for number, name in enumerate(ODD_NAMES):
        users[name] = users["student"] | {"sub": f"odd-{number}"}
    file.write_text(json.dumps(users), encoding="utf-8")
    yield
    file.write_text(original, encoding="utf-8")


def test_odd_names_are_refused_with_a_reason_and_make_no_path(demo_hub, people, odd_people):
    before = sorted(path.name for path in (demo_hub.state / "homes").iterdir())
    for name in ODD_NAMES:
        person, page = sign_in(demo_hub, name, demo_hub.accounts["student"])
        assert person is None, f"{name!r} was let in"
        assert page.status_code == httpx.codes.FORBIDDEN, f"{name!r}: {page.status_code} {page.text[:200]}"
        assert "cannot be used here" in page.text, page.text
    assert sorted(path.name for path in (demo_hub.state / "homes").iterdir()) == before


def test_somebody_without_a_group_is_refused(demo_hub, people):
    file = demo_hub.state / "demo/users.json"
    original = file.read_text(encoding="utf-8")
    users = json.loads(original)
    users["outsider"] = users["student"] | {"sub": "outsider", "groups": ["alumni"]}
    file.write_text(json.dumps(users), encoding="utf-8")
    try:
        person, page = sign_in(demo_hub, "outsider", demo_hub.accounts["student"])
    finally:
        file.write_text(original, encoding="utf-8")
    assert person is None
    assert page.status_code == httpx.codes.FORBIDDEN


def test_pages_log_and_command_line_say_simulated(demo_hub, people):
    assert "imulated" in people["student"].browser.get(f"{demo_hub.url}/hub/home").text
    assert "SIMULATED" in (demo_hub.state / "log/hub.log").read_text(encoding="utf-8")
    assert "simulated" in demo_hub.command("-m", "spawner.cli", "gpus").lower()
    assert json.loads(demo_hub.command("-m", "spawner.cli", "gpus", "--json"))["simulated"] is True
