"""What the engine has of each variant is told from the image itself."""

import io
import json
import tarfile
from typing import Any

import pytest
from docker.errors import DockerException, ImageNotFound, NotFound

from deploy import image_check

VERSION = b'"""JupyterHub version info"""\nversion_info = (6, 1, 1, "", "")\n'


class Engine:
    """An engine with some images, and a container that is made and never started."""

    def __init__(self, text: bytes | None, *names: str) -> None:
        self.text, self.names = text, names
        self.images = self.containers = self
        self.id = "sha256:1"
        self.labels: dict[str, str] = {}
        self.told: list[str] = []

    def get(self, name: str) -> "Engine":
        if name not in self.names:
            raise ImageNotFound(name)
        return self

    def create(self, image: str, **options: Any) -> "Engine":
        self.told.append("created")
        return self

    def get_archive(self, path: str) -> tuple[list[bytes], object]:
        if self.text is None:
            raise NotFound(path)
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            info = tarfile.TarInfo("_version.py")
            info.size = len(self.text)
            tar.addfile(info, io.BytesIO(self.text))
        return [made.getvalue()], None

    def remove(self, **options: Any) -> None:
        self.told.append("removed")


@pytest.fixture
def looked(monkeypatch, capsys):
    def look(engine: Engine) -> list[dict[str, Any]]:
        monkeypatch.setattr(image_check, "connect", lambda: engine)
        assert image_check.main() == 0
        return list(json.loads(capsys.readouterr().out))

    return look


@pytest.mark.parametrize(
    ("text", "version"), [(VERSION, "6.1.1"), (b"__version__ = 6", ""), (None, "")], ids=["found", "odd", "absent"]
)
def test_the_version_is_read_in_the_image_and_nothing_is_left(looked, text, version):
    engine = Engine(text, "gpucampus/cpu:2.13.0")
    cpu, plain = looked(engine)
    assert (cpu["variant"], cpu["built"], cpu["jupyterhub"]) == ("cpu", True, version)
    assert (plain["built"], plain["current"]) == (False, False)
    assert engine.told == ["created", "removed"]


def test_an_image_of_other_files_is_not_current(looked):
    cpu, _ = looked(Engine(VERSION, "gpucampus/cpu:2.13.0", "gpucampus/base:bookworm"))
    assert cpu["current"] is False


def test_an_engine_that_does_not_answer_is_one_line(monkeypatch, capsys):
    def no_engine():
        raise DockerException("connection refused")

    monkeypatch.setattr(image_check, "connect", no_engine)
    assert image_check.main() == 1
    assert capsys.readouterr().err == "the images are unknown: connection refused\n"
