"""README's own commands, on machines as they come, as a newcomer types them: `make test-newcomer`, half an hour."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.newcomer.fresh import SOURCE, FreshMachine
from tests.rig.waiting import wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("GPUCAMPUS_TEST_STATE", ROOT / ".state")) / "newcomer"
ADDRESS = "http://localhost:8000"
GPU = {"cpu": {"variant": "cpu", "mode": "exclusive", "gpus": 1}, "plain": {"variant": "plain"}}
FIRST_LIMIT_S, REPEAT_LIMIT_S = 1500, 60
# each step of a first run, and how long after its beginning it is killed
KILLED = {
    "Python ": 2,
    "Python packages": 12,
    "Docker Engine": 6,
    "Debian packages": 3,
    "Node packages": 2,
    "Base image": 15,
    "Image cpu": 30,
    "Demo": 0.2,
    "Sign-in": 0.3,
    "Proxy": 0.3,
    "Hub": 1,
}

pytestmark = [pytest.mark.newcomer, pytest.mark.timeout(3600)]


def commands() -> list[str]:
    """The commands that README opens with."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    lines = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    return [line.replace("ADDRESS-OF-THIS-REPOSITORY", f"file://{SOURCE}") for line in lines if line]


class Run:
    """One `make run` on a machine, with what it printed."""

    def __init__(self, machine: FreshMachine, command: str, log: Path) -> None:
        log.unlink(missing_ok=True)
        self.log, self._start = log, time.monotonic()
        with log.open("ab") as output:
            self.process = machine.start(f"cd gpucampus && exec {command}", output)

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words: str, limit_s: float) -> float:
        """Wait until it prints some words; the seconds since its start."""

        def printed() -> bool:
            ended = self.process.poll()
            if re.search(rf"^\s*{re.escape(words)}", self.text, re.MULTILINE):
                return True
            assert ended is None, f"make run ended with {ended} before it said {words!r}:\n{self.text}"
            return False

        wait_until_sync(printed, limit_s, f"make run says {words!r}")
        return time.monotonic() - self._start

    def kill(self) -> None:
        """End it as a power cut does: the shell, make, and all that they started in the foreground."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def interrupt(self) -> None:
        """Ctrl-C; nsenter goes at once, what it started takes its time."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)
        wait_until_sync(lambda: "The hub has ended" in self.text, 60, "the hub has ended")


@pytest.fixture(scope="module")
def repository() -> Path:
    """What a clone of the committed state comes from."""
    bare = FOLDER / "gpucampus.git"
    shutil.rmtree(bare, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), str(bare)], check=True)
    return bare


def prepared(suite: str, repository: Path) -> FreshMachine:
    machine = FreshMachine(suite, FOLDER, repository)
    machine.make()
    for old in FOLDER.glob(f"{suite}*.log"):
        old.unlink()
    return machine


def visit(machine: FreshMachine) -> None:
    """Sign in as the student, start a server with a GPU, stop it."""
    accounts = json.loads((machine.root / "root/gpucampus/.state/demo/accounts.json").read_text(encoding="utf-8"))
    log = (machine.root / "root/gpucampus/.state/log/setup.log").read_text(encoding="utf-8", errors="replace")
    options = GPU["plain" if "left out" in log else "cpu"]
    arguments = [ADDRESS, "student", accounts["student"], json.dumps(options)]
    command = [*machine.inside(), sys.executable, "-m", "tests.newcomer.visit", *arguments]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300)
    hub = (machine.root / "root/gpucampus/.state/log/hub.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{hub[-4000:]}"


def test_readme_s_commands_lead_to_a_server_on_a_fresh_debian_12(repository):
    machine, (*before, run) = prepared("bookworm", repository), commands()
    log = FOLDER / "bookworm.log"
    with machine.running():
        for command in before:
            machine.run(f"apt-get update && {command}" if command.startswith("apt-get") else command, log)
        first = Run(machine, run, FOLDER / "bookworm-first.log")
        seconds = first.wait_for(ADDRESS, FIRST_LIMIT_S)
        first.wait_for("Ctrl-C ends the hub", 10)
        assert first.text.index("docker.io and iptables") < first.text.index("\nDocker Engine "), (
            "said before it is done"
        )
        assert "ssh -L 8000:localhost:8000" in first.text, "there is no desktop here"
        visit(machine)
        first.interrupt()
        again = Run(machine, run, FOLDER / "bookworm-again.log")
        repeated = again.wait_for(ADDRESS, REPEAT_LIMIT_S)
        visit(machine)
        again.interrupt()
        load = os.getloadavg()[1]
        print(f"\nDebian 12: first run {seconds:.0f} s, repeated {repeated:.1f} s (load {load:.1f})")
        print(first.text, again.text, sep="")
        machine.run("cd gpucampus && make stop && make clean HOMES=1", log)
    machine.remove()


def test_a_first_run_killed_in_every_step_goes_on_each_time_on_a_fresh_debian_13(repository):
    machine, (*before, run) = prepared("trixie", repository), commands()
    log, killed = FOLDER / "trixie.log", list[str]()
    with machine.running():
        for command in before:
            machine.run(f"apt-get update && {command}" if command.startswith("apt-get") else command, log)
        for step, delay_s in KILLED.items():
            broken = Run(machine, run, FOLDER / f"trixie-{len(killed)}.log")
            broken.wait_for(step, FIRST_LIMIT_S)
            try:
                broken.process.wait(delay_s)
            except subprocess.TimeoutExpired:
                broken.kill()
            killed.append(f"{step.strip()}: {broken.text.splitlines()[-1][:70]}")
        last = Run(machine, run, FOLDER / "trixie-last.log")
        seconds = last.wait_for(ADDRESS, FIRST_LIMIT_S)
        visit(machine)
        print("\nDebian 13, killed in\n  " + "\n  ".join(killed) + f"\nthen {seconds:.0f} s:\n{last.text}")
        machine.run("cd gpucampus && make stop && make clean HOMES=1", log)
    machine.remove()
