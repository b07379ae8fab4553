"""What touches the homes root: run by storage.py as a program of its own, never imported.

A NAS that hangs holds whoever touches it, even against SIGKILL, so the hub never touches it: this program does, and
the hub leaves it behind when its time is up. One request as JSON on stdin, one answer as JSON on stdout; an answer is
`{"ok": ...}` or `{"code": ..., "params": {...}}`. Only the standard library, since it starts with `python -I -S`.

The homes root is opened before the uid is dropped: the way to it may lead through a folder that the user cannot
enter. A home is made and its marker written as the user, since root is nobody on a root-squashed NAS. Nothing is ever
changed, or walked, inside a home that is there already, except its marker.
"""

import contextlib
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

MARKER = ".gpucampus-home.json"
MARKER_LIMIT = 4096
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: a FIFO in the marker's place would hold whoever opens it
MARKER_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MARKER_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RefusedError(Exception):
    """An expected end: a code of core/model.py and its values."""

    def __init__(self, code: str, **params: str | int) -> None:
        super().__init__(code)
        self.answer = {"code": code, "params": params}


def prepare(root: str) -> None:
    """Make the homes root if it is missing; others may pass through it but not list it."""
    try:
        os.makedirs(os.path.dirname(root), mode=0o755, exist_ok=True)  # noqa: PTH103, PTH120  # pathlib starts slower
        os.mkdir(root, mode=0o711)  # noqa: PTH102
        os.chmod(root, 0o711)  # noqa: PTH101, S103  # whatever the umask was; the folder was made just now
    except FileExistsError:
        if not os.path.isdir(root):  # noqa: PTH112
            raise RefusedError("home-unavailable", why=f"{root} is not a folder") from None


def ensure(root: str, uid: int, home: str, marker: str) -> str:
    """Make the home as the user if it is missing, check whose it is, and write its marker; say how the marker went."""
    root_fd = os.open(root, FOLDER)
    if os.geteuid() == 0:
        if owned_by_root(root_fd):
            make_for(root_fd, uid, home)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    elif os.geteuid() != uid:
        raise RefusedError("home-unavailable", why=f"the hub is not root and cannot act as user {uid}")
    os.umask(0o077)
    found = find(root_fd, home)
    if found is None:
        os.mkdir(home, 0o700, dir_fd=root_fd)
        found = os.stat(home, dir_fd=root_fd, follow_symlinks=False)
    check(found, uid, home)
    home_fd = os.open(home, FOLDER | os.O_NOFOLLOW, dir_fd=root_fd)
    check(os.fstat(home_fd), uid, home)
    try:
        return write_marker(home_fd, marker)
    except OSError as error:  # a full home must still start: its owner has to be able to delete something
        return error.strerror or type(error).__name__


def owned_by_root(root_fd: int) -> bool:
    """Whether only root may make something in the homes root: a local folder, not a NAS export open to users."""
    root = os.fstat(root_fd)
    return root.st_uid == 0 and not root.st_mode & stat.S_IWOTH


def make_for(root_fd: int, uid: int, home: str) -> None:
    """Make a missing home in a root of root's own: under another name first, so that it appears with its owner."""
    if find(root_fd, home) is not None:
        return
    new = f".new-{home}"
    if find(root_fd, new) is not None:
        os.rmdir(new, dir_fd=root_fd)  # left by a crash; if it is not empty, somebody has to look
    os.mkdir(new, 0o700, dir_fd=root_fd)
    new_fd = os.open(new, FOLDER | os.O_NOFOLLOW, dir_fd=root_fd)
    os.fchown(new_fd, uid, uid)
    os.rename(new, home, src_dir_fd=root_fd, dst_dir_fd=root_fd)


def find(root_fd: int, name: str) -> os.stat_result | None:
    """Look at a name without following it."""
    try:
        return os.stat(name, dir_fd=root_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def check(found: os.stat_result, uid: int, home: str) -> None:
    """Refuse what is not a folder of this user."""
    if not stat.S_ISDIR(found.st_mode):
        raise RefusedError("home-not-folder", home=home)
    if found.st_uid != uid:
        raise RefusedError("home-owner", owner=found.st_uid, uid=uid)


def write_marker(home_fd: int, marker: str) -> str:
    """Write the marker where it is missing or another; a reader sees the old one or the new one, never a part."""
    if read_marker(home_fd) == marker:
        return "kept"
    new = MARKER + ".new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new, dir_fd=home_fd)  # left by a crash
    new_fd = os.open(new, MARKER_WRITE, 0o600, dir_fd=home_fd)
    with os.fdopen(new_fd, "w", encoding="utf-8") as file:
        file.write(marker)
    os.rename(new, MARKER, src_dir_fd=home_fd, dst_dir_fd=home_fd)
    return "written"


def read_marker(home_fd: int) -> str | None:
    """Read the marker if it is a plain small file."""
    try:
        marker_fd = os.open(MARKER, MARKER_READ, dir_fd=home_fd)
    except OSError:
        return None
    with os.fdopen(marker_fd, "rb") as file:
        found = os.fstat(marker_fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MARKER_LIMIT:
            return None
        try:
            return file.read(MARKER_LIMIT).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            return None


def survey(root: str) -> list[dict[str, Any]]:
    """List the folders of the root whose name is a number, with owner and marker; one level, never below.

    A marker is read only in a folder that its own number owns.
    """
    root_fd = os.open(root, FOLDER)
    homes = []
    for name in os.listdir(root_fd):  # noqa: PTH208  # of the folder opened, not of a path
        if not (name.isascii() and name.isdigit()):
            continue
        found = find(root_fd, name)
        if found is None:
            continue
        home = {"name": name, "owner": found.st_uid, "marker": None}
        if stat.S_ISDIR(found.st_mode) and name == str(found.st_uid):
            home["marker"] = marker_as(root_fd, name, found.st_uid)
        homes.append(home)
    return homes


def marker_as(root_fd: int, name: str, uid: int) -> str | None:
    """Read a marker as the home's owner: root may not look into a home on a root-squashed NAS."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(uid)
    try:
        home_fd = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=root_fd)
        try:
            return read_marker(home_fd)
        finally:
            os.close(home_fd)
    except OSError:
        return None
    finally:
        if root:
            os.seteuid(0)


def attempt(root: str, uid: int) -> str:
    """Make a folder as homes are made, write a file in it as the user, and remove both; say who made the folder."""
    root_fd = os.open(root, FOLDER)
    name, privileged = f".gpucampus-doctor-{os.getpid()}", os.geteuid() == 0
    by_root = privileged and owned_by_root(root_fd)
    if privileged and not by_root:
        become(uid)
    os.mkdir(name, 0o700, dir_fd=root_fd)
    try:
        folder_fd = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=root_fd)
        if by_root:
            os.fchown(folder_fd, uid, uid)
            become(uid)
        file_fd = os.open("file", MARKER_WRITE, 0o600, dir_fd=folder_fd)
        try:
            os.write(file_fd, b"gpucampus doctor\n")
            os.fsync(file_fd)  # a full or read-only NAS may say so only now
            if os.fstat(file_fd).st_uid != os.geteuid():
                raise RefusedError("home-owner", owner=os.fstat(file_fd).st_uid, uid=uid)
        finally:
            os.close(file_fd)
            os.unlink("file", dir_fd=folder_fd)
    finally:
        if by_root:
            os.seteuid(0)
        os.rmdir(name, dir_fd=root_fd)
    return "root" if by_root else "user"


def become(uid: int) -> None:
    """Act as a user from here on, with a way back for a program that removes what it made."""
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)


def space(root: str) -> dict[str, int]:
    """Tell the size of the file system that a folder is on, as `df` does."""
    found = os.statvfs(root)
    return {
        "device": os.stat(root).st_dev,  # noqa: PTH116  # pathlib starts slower
        "used": (found.f_blocks - found.f_bfree) * found.f_frsize,
        "available": found.f_bavail * found.f_frsize,
    }


def biggest(root: str, seconds: float, most: int) -> dict[str, Any]:
    """Add up what is below each name of the root, biggest first, for so many seconds; `whole` says that none is left.

    A home is read as its owner, since root may not look into it on a root-squashed NAS.
    """
    until = time.monotonic() + seconds
    root_fd = os.open(root, FOLDER)
    sizes, whole = list[tuple[int, str]](), True
    for name in sorted(os.listdir(root_fd)):  # noqa: PTH208  # of the folder opened, not of a path
        found = find(root_fd, name)
        if found is None:
            continue
        total = found.st_blocks * 512
        if stat.S_ISDIR(found.st_mode):
            total += below(root_fd, name, found, until)
        sizes.append((total, name))
        if time.monotonic() > until:
            whole = False
            break
    return {
        "sizes": [{"name": name, "bytes": total} for total, name in sorted(sizes)[: -most - 1 : -1]],
        "whole": whole,
    }


def below(root_fd: int, name: str, found: os.stat_result, until: float) -> int:
    """Add up the blocks of all files below a folder that are on its file system, until the time is up."""
    privileged = os.geteuid() == 0
    if privileged:
        os.seteuid(found.st_uid)
    total = 0
    try:
        for folder, folders, files, folder_fd in os.fwalk(name, dir_fd=root_fd):
            for entry in walked(folder_fd, (*folders, *files)):
                total += entry.st_blocks * 512
            folders[:] = [one for one in folders if same_device(folder_fd, one, found.st_dev)]
            if time.monotonic() > until or folder.count("/") > 100:
                break
    except OSError:
        pass  # what could not be read is not counted
    finally:
        if privileged:
            os.seteuid(0)
    return total


def walked(folder_fd: int, names: tuple[str, ...]) -> Iterator[os.stat_result]:
    """Look at names that may be gone by now."""
    for name in names:
        with contextlib.suppress(OSError):
            yield os.stat(name, dir_fd=folder_fd, follow_symlinks=False)


def same_device(folder_fd: int, name: str, device: int) -> bool:
    """Whether a folder is no mount of another file system."""
    return any(found.st_dev == device for found in walked(folder_fd, (name,)))


DOES: dict[str, Callable[..., Any]] = {
    "attempt": attempt,
    "biggest": biggest,
    "ensure": ensure,
    "prepare": prepare,
    "space": space,
    "survey": survey,
}


def main() -> None:
    """Answer the one request."""
    request = json.load(sys.stdin)
    do = DOES[request.pop("do")]
    try:
        answer = {"ok": do(**request)}
    except RefusedError as refused:
        answer = refused.answer
    except OSError as error:
        why = f"{error.strerror}, {errno.errorcode.get(error.errno or 0, error.errno)}"
        answer = {"code": "home-unavailable", "params": {"why": why}}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
