"""`use-mirror aliyun|tuna|official`: where pip and apt fetch from.

Where the root can be written (while an image is built) it switches both, for everybody; in a server it switches pip for
the person alone. What stood there stays beside the mirror's line as a comment, so that `official` brings it back.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MIRRORS", "Mirror", "apt_sources", "main", "pip_conf", "use"]

_MARK = "# official: "
_OFFICIAL_PIP = "https://pypi.org/simple"
_DEBIAN = re.compile(r"https?://(?:deb|security|ftp)\.debian\.org/(debian-security|debian)(?=[\s/]|$)/?")
_INDEX = re.compile(r"\s*index-url\s*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """A mirror of PyPI and of Debian: the index, and the address that Debian's folders are below."""

    pip: str
    apt: str


MIRRORS = {
    "aliyun": Mirror(pip="https://mirrors.aliyun.com/pypi/simple/", apt="https://mirrors.aliyun.com"),
    "tuna": Mirror(pip="https://pypi.tuna.tsinghua.edu.cn/simple", apt="https://mirrors.tuna.tsinghua.edu.cn"),
}


def apt_sources(text: str, mirror: Mirror | None) -> str:
    """Rewrite a sources file of either form; None is the official sources. Other addresses than Debian's own stay."""
    lines: list[str] = []
    for line in _official(text).splitlines():
        new = line if mirror is None or line.startswith("#") else _DEBIAN.sub(_below(mirror), line)
        lines += [line] if new == line else [_MARK + line, new]
    return _joined(lines)


def pip_conf(text: str, mirror: Mirror | None) -> str:
    """Rewrite a pip.conf: the index of its section [global]; None is the index that stood there before, or PyPI."""
    lines = _official(text).splitlines()
    if mirror is None:
        return _joined(lines)
    if "[global]" not in [line.strip() for line in lines]:
        lines += ["[global]"]
    start = [line.strip() for line in lines].index("[global]") + 1
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("[")), len(lines))
    found = [n for n in range(start, end) if _INDEX.match(lines[n])]
    place = found[0] if found else start
    official = lines.pop(place) if found else f"index-url = {_OFFICIAL_PIP}"
    lines[place:place] = [_MARK + official, f"index-url = {mirror.pip}"]
    return _joined(lines)


def use(name: str, root: Path, environment: Mapping[str, str]) -> list[Path]:
    """Switch whatever this user may switch; return the files that now say so."""
    mirror = MIRRORS.get(name)
    if not os.access(root / "etc", os.W_OK):
        given = environment.get("XDG_CONFIG_HOME") or Path(environment["HOME"], ".config")
        return [_rewrite(Path(given, "pip/pip.conf"), pip_conf, mirror)]
    sources = [root / "etc/apt/sources.list", *sorted((root / "etc/apt/sources.list.d").glob("*.[ls]*"))]
    found = [_rewrite(path, apt_sources, mirror) for path in sources if path.exists()]
    return [*found, _rewrite(root / "etc/pip.conf", pip_conf, mirror)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Switch, and say what is in force."""
    parser = argparse.ArgumentParser(prog="use-mirror", description="Choose where pip (and apt, as root) fetch from.")
    parser.add_argument("mirror", choices=[*MIRRORS, "official"])
    name = parser.parse_args(arguments).mirror
    try:
        files = use(name, Path("/"), os.environ)
    except OSError as error:
        print(f"{error.filename} cannot be written: {error.strerror}.", file=sys.stderr)
        return 1
    print(f"{name}: {', '.join(str(path) for path in files)}")
    if given := os.environ.get("PIP_INDEX_URL"):
        print(f"PIP_INDEX_URL goes before it: pip fetches from {given}, as the campus has set it.")
    return 0


def _official(text: str) -> str:
    """The text as it was before a mirror: a line with the mark is the official one, the next is the mirror's."""
    lines: list[str] = []
    skip = False
    for line in text.splitlines():
        if skip:
            skip = False
        elif line.startswith(_MARK):
            lines.append(line.removeprefix(_MARK))
            skip = True
        else:
            lines.append(line)
    return _joined(lines)


def _below(mirror: Mirror) -> str:
    return rf"{mirror.apt}/\1"


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _rewrite(path: Path, change: Callable[[str, Mirror | None], str], mirror: Mirror | None) -> Path:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    new = change(old, mirror)
    if new != old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new, encoding="utf-8")
    return path
