"""Mirrors: what the files say afterwards. No mirror is asked."""

from pathlib import Path

import pytest

from gpucampus_tools import mirrors
from gpucampus_tools.mirrors import MIRRORS

ONE_LINE = """\
# see apt(8)
deb http://deb.debian.org/debian bookworm main
deb http://security.debian.org/debian-security bookworm-security main
deb https://packages.example.org/debian-tools bookworm main
"""
ONE_LINE_ALIYUN = """\
# see apt(8)
# official: deb http://deb.debian.org/debian bookworm main
deb https://mirrors.aliyun.com/debian bookworm main
# official: deb http://security.debian.org/debian-security bookworm-security main
deb https://mirrors.aliyun.com/debian-security bookworm-security main
deb https://packages.example.org/debian-tools bookworm main
"""
DEB822 = """\
Types: deb
URIs: http://deb.debian.org/debian/
Suites: bookworm bookworm-updates
Components: main
"""
DEB822_TUNA = """\
Types: deb
# official: URIs: http://deb.debian.org/debian/
URIs: https://mirrors.tuna.tsinghua.edu.cn/debian
Suites: bookworm bookworm-updates
Components: main
"""
PIP = "[install]\nno-compile = true\n[global]\ntimeout = 60\nindex-url = https://pypi.example.org/simple\n[list]\n"
PIP_TUNA = """\
[install]
no-compile = true
[global]
timeout = 60
# official: index-url = https://pypi.example.org/simple
index-url = https://pypi.tuna.tsinghua.edu.cn/simple
[list]
"""


@pytest.mark.parametrize(
    ("change", "official", "mirror", "switched"),
    [
        pytest.param(mirrors.apt_sources, ONE_LINE, "aliyun", ONE_LINE_ALIYUN, id="apt-one-line"),
        pytest.param(mirrors.apt_sources, DEB822, "tuna", DEB822_TUNA, id="apt-deb822"),
        pytest.param(mirrors.pip_conf, PIP, "tuna", PIP_TUNA, id="pip"),
    ],
)
def test_a_mirror_stands_beside_the_official_line_and_goes_again(change, official: str, mirror: str, switched: str):
    assert change(official, MIRRORS[mirror]) == switched
    assert change(switched, MIRRORS[mirror]) == switched, "twice is once"
    assert change(switched, None) == official
    assert change(official, None) == official
    for other in MIRRORS.values():
        assert change(change(switched, other), None) == official, "from one mirror to the other"


def test_a_pip_conf_that_names_no_index_gets_the_official_one_as_its_comment():
    wanted = "[global]\n# official: index-url = https://pypi.org/simple\nindex-url = {}\n"
    assert mirrors.pip_conf("", MIRRORS["aliyun"]) == wanted.format(MIRRORS["aliyun"].pip)
    assert mirrors.pip_conf("", None) == ""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root file system with both forms of apt's sources."""
    (tmp_path / "etc/apt/sources.list.d").mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text(ONE_LINE)
    (tmp_path / "etc/apt/sources.list.d/debian.sources").write_text(DEB822)
    return tmp_path


def test_where_the_root_can_be_written_pip_and_apt_are_switched_for_everybody(root: Path):
    mirrors.use("tuna", root, {"HOME": str(root / "home")})
    assert (root / "etc/apt/sources.list.d/debian.sources").read_text() == DEB822_TUNA
    assert "tuna" in (root / "etc/apt/sources.list").read_text()
    assert "index-url = https://pypi.tuna.tsinghua.edu.cn/simple" in (root / "etc/pip.conf").read_text()
    assert not (root / "home").exists()


def test_official_makes_no_file(root: Path):
    mirrors.use("official", root, {"HOME": str(root / "home")})
    assert not (root / "etc/pip.conf").exists()
    assert (root / "etc/apt/sources.list").read_text() == ONE_LINE


def test_in_a_server_pip_alone_is_switched_for_the_person(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    home = root / "home"
    assert mirrors.use("aliyun", root, {"HOME": str(home)}) == [home / ".config/pip/pip.conf"]
    assert MIRRORS["aliyun"].pip in (home / ".config/pip/pip.conf").read_text()
    assert (root / "etc/apt/sources.list").read_text() == ONE_LINE


def test_an_index_of_the_campus_is_named_since_it_goes_first(root: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(mirrors, "use", lambda *_: [Path("/home/anna/.config/pip/pip.conf")])
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.campus.example/simple")
    assert mirrors.main(["tuna"]) == 0
    assert "PIP_INDEX_URL goes before it: pip fetches from https://pypi.campus.example" in capsys.readouterr().out
