import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from deploy import processes
from deploy.processes import Program
from deploy.steps import Problem
from tests.rig.waiting import wait_until_sync

WAITS = (sys.executable, "-c", "import time; time.sleep(600)")
SERVES = """
import http.server, sys
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_a_started_program_is_in_a_session_of_its_own_and_is_ended_by_its_pid_file(tmp_path: Path):
    file = tmp_path / "run/some.pid"
    running = processes.start(file, WAITS, log=tmp_path / "log", env=os.environ)
    assert processes.read(file) == running
    assert os.getsid(running.pid) == running.pid
    assert processes.stop(file)
    assert not running.alive
    assert not file.exists()


def test_a_pid_that_now_belongs_to_somebody_else_is_never_ended(tmp_path: Path):
    file = tmp_path / "some.pid"
    with subprocess.Popen(WAITS) as stranger:
        try:
            processes.record(file, stranger.pid, WAITS)
            told = json.loads(file.read_text())
            file.write_text(json.dumps(told | {"started": told["started"] - 1}))
            assert processes.read(file) is None
            assert not processes.stop(file)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_pid_file_of_an_earlier_boot_names_nobody(tmp_path: Path):
    file = tmp_path / "some.pid"
    processes.record(file, os.getpid(), WAITS)
    assert processes.read(file) is not None
    file.write_text(json.dumps(json.loads(file.read_text()) | {"boot": "another"}))
    assert processes.read(file) is None


@pytest.mark.parametrize("content", ["", "123", "{}", '{"pid": "x"}', "[1, 2]"])
def test_a_pid_file_that_makes_no_sense_names_nobody(tmp_path: Path, content: str):
    file = tmp_path / "some.pid"
    file.write_text(content)
    assert processes.read(file) is None
    assert not processes.stop(file)


def test_a_program_that_answers_is_left_alone_and_one_with_other_words_is_started_again(tmp_path: Path, free_port: int):
    address = f"http://127.0.0.1:{free_port}/"
    command = (sys.executable, "-c", SERVES, str(free_port))
    program = Program(what="It", pid_file="it.pid", command=command, env=os.environ)
    file = tmp_path / "run/it.pid"
    try:
        assert program.ensure(tmp_path, address) == ""
        first = processes.read(file)
        assert program.ensure(tmp_path, address) == "runs already"
        assert processes.read(file) == first
        changed = Program(what="It", pid_file="it.pid", command=(*command, "--new"), env=os.environ)
        assert changed.ensure(tmp_path, address) == "started again"
        assert processes.read(file) != first
        assert first is not None
        assert not first.alive
    finally:
        processes.stop(file)


def test_a_port_that_another_program_holds_is_named_and_that_program_goes_on(tmp_path: Path):
    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = Program(what="The proxy", pid_file="it.pid", command=WAITS, env=os.environ)
        address = f"http://127.0.0.1:{server.server_port}/"
        with pytest.raises(Problem, match="another program answers at"):
            program.ensure(tmp_path, address)
        assert processes.answers(address) == 404
        server.shutdown()


def test_a_program_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path, free_port: int):
    command = (sys.executable, "-c", "raise SystemExit('no port for me')")
    program = Program(what="The proxy", pid_file="it.pid", command=command, env=os.environ)
    with pytest.raises(Problem, match="no port for me"):
        program.ensure(tmp_path, f"http://127.0.0.1:{free_port}/")


def test_a_program_that_ignores_the_request_to_end_is_killed(tmp_path: Path):
    file, log = tmp_path / "some.pid", tmp_path / "log"
    running = processes.start(file, (sys.executable, "-c", STUBBORN), log=log, env=os.environ)
    wait_until_sync(lambda: "ready" in log.read_text())
    assert processes.stop(file, patience_s=0.2)
    wait_until_sync(lambda: not running.alive)
