"""A checkout in a folder that only its owner may enter serves all the same, so `make run` does not refuse it."""

import os

import pytest

from spawner.docker_api import bind_mount

pytestmark = pytest.mark.docker

UID = 200_001


def test_a_home_below_a_folder_closed_to_all_others_is_its_user_s_in_the_container(engine, probe_image, tmp_path):
    closed = tmp_path / "closed"
    home = closed / "checkout/.state/homes/200001"
    home.mkdir(parents=True)
    passwd = closed / "passwd"
    passwd.write_text("ann:x:200001:200001::/home/ann:/bin/sh\n")
    os.chown(home, UID, UID)
    home.chmod(0o700)
    os.chown(closed, 1000, 1000)
    closed.chmod(0o700)
    mounts = [bind_mount(str(home), "/home/ann"), bind_mount(str(passwd), "/etc/passwd", read_only=True)]
    script = "from pathlib import Path; Path.home().joinpath('work').write_text('mine'); print(Path.home().owner())"
    said = engine.output_of(
        probe_image,
        ["python3", "-c", script],
        user=f"{UID}:{UID}",
        environment={"HOME": "/home/ann"},
        mounts=mounts,
        cap_drop=["ALL"],
        read_only=True,
    )
    assert said.strip() == "ann"
    assert (home / "work").read_text() == "mine"
