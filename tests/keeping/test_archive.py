"""Nothing of a backup is believed before every byte was verified, whoever made the file."""

import hashlib
import io
import json
import tarfile

import pytest

from spawner.keeping import archive
from spawner.keeping.files import KeepingError
from tests.keeping.conftest import make_hub


def contents(file):
    with tarfile.open(file, "r:") as tar:
        return {info.name: (tar.extractfile(info) or io.BytesIO()).read() for info in tar}


def written(file, members, **changes):
    """A tar of these members; a change replaces what is told of a member."""
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for key, value in changes.get(name.replace("/", "_").replace(".", "_"), {}).items():
                setattr(info, key, value)
            tar.addfile(info, io.BytesIO(content))
    return file


def listed(found, name, content=b"x"):
    """The members with one more, which the list has, too."""
    manifest = json.loads(found["manifest.json"])
    manifest["members"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "mode": 0o600}
    return [*(found | {"manifest.json": json.dumps(manifest).encode()}).items(), (name, content)]


@pytest.fixture(scope="module")
def found(databases, tmp_path_factory):
    """The members of a backup that is as it should be."""
    return contents(make_hub(tmp_path_factory.mktemp("hub") / "hub", databases).backup())


def test_what_was_written_is_read_again(hub, tmp_path):
    (tmp_path / "out").mkdir()
    manifest = archive.read(hub.backup(), tmp_path / "out")
    assert {name for name in manifest.members if (tmp_path / "out" / name).is_file()} == set(manifest.members)
    assert (tmp_path / "out/secrets/crypt_key").read_text() == "the crypt_key"
    assert (tmp_path / "out/secrets/crypt_key").stat().st_mode & 0o777 == 0o600


def test_one_changed_byte_anywhere_in_a_member_is_found(hub, tmp_path):
    content = bytearray(hub.backup().read_bytes())
    at = content.index(b"the crypt_key")
    content[at] ^= 1
    (tmp_path / "b.tar").write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeepingError, match=r"secrets/crypt_key has changed.*nothing was changed"):
        archive.read(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize("part", [0.0, 0.05, 0.3, 0.6, 0.97])
def test_a_file_that_was_cut_off_is_found(hub, tmp_path, part):
    content = hub.backup().read_bytes()
    end = content.rstrip(b"\0")
    (tmp_path / "b.tar").write_bytes(content[: int(len(end) * part)])
    (tmp_path / "out").mkdir()
    with pytest.raises(KeepingError, match="nothing was changed"):
        archive.read(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "/etc/escaped",
        "secrets/../../escaped",
        "secrets/.hidden",
        "config.d/../../escaped.py",
        "config.d/a/b/c/d/e.py",
        "homes/anna",
        "log/audit.jsonl.10",
        "secrets/a\nb",
        "hub.sqlite-wal",
    ],
)
def test_a_name_that_is_not_of_the_closed_set_is_refused(found, tmp_path, name):
    file = written(tmp_path / "b.tar", listed(found, name))
    (tmp_path / "out").mkdir()
    with pytest.raises(KeepingError, match=r"no backup that can be trusted|cannot be read"):
        archive.read(file, tmp_path / "out")
    assert not (tmp_path / "escaped").exists()
    assert not any(path.name in {"escaped", "escaped.py"} for path in tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, id="symbolic link"),
        pytest.param({"type": tarfile.LNKTYPE, "linkname": "settings.toml"}, id="hard link"),
        pytest.param({"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, id="character device"),
        pytest.param({"type": tarfile.BLKTYPE}, id="block device"),
        pytest.param({"type": tarfile.FIFOTYPE}, id="pipe"),
        pytest.param({"type": tarfile.DIRTYPE}, id="folder"),
        pytest.param({"type": tarfile.GNUTYPE_SPARSE}, id="sparse"),
        pytest.param({"pax_headers": {"size": str(1 << 60)}}, id="absurd size"),
        pytest.param({"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}}, id="holes"),
    ],
)
def test_links_devices_folders_holes_and_absurd_sizes_are_refused(found, tmp_path, changes):
    rest = [(name, content) for name, content in found.items() if name != "client_secret"]
    file = written(tmp_path / "b.tar", [*rest, ("client_secret", found["client_secret"])], client_secret=changes)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeepingError, match="nothing was changed"):
        archive.read(file, tmp_path / "out")
    assert not (tmp_path / "out/client_secret").exists()


def test_a_member_of_the_list_that_is_not_there_is_found(found, tmp_path):
    (tmp_path / "out").mkdir()
    file = written(tmp_path / "b.tar", [item for item in found.items() if item[0] != "secrets/crypt_key"])
    with pytest.raises(KeepingError, match="is cut off: secrets/crypt_key is missing"):
        archive.read(file, tmp_path / "out")


def test_a_member_twice_or_outside_the_list_is_refused(found, tmp_path):
    for number, more in enumerate([("client_secret", found["client_secret"]), ("secrets/more", b"x")]):
        (tmp_path / f"out{number}").mkdir()
        file = written(tmp_path / f"b{number}.tar", [*found.items(), more])
        with pytest.raises(KeepingError, match="is not in its list, or twice"):
            archive.read(file, tmp_path / f"out{number}")


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (b"", "not as it should be|cannot be read"),
        (b"[]", "not as it should be"),
        (b"{}", "not as it should be"),
        (b'{"format": 2}', "newer format"),
        (b"[" * 100_000, "nothing was changed"),
    ],
)
def test_a_manifest_that_says_nothing_usable_is_one_sentence(found, tmp_path, manifest, said):
    (tmp_path / "out").mkdir()
    file = written(tmp_path / "b.tar", (found | {"manifest.json": manifest}).items())
    with pytest.raises(KeepingError, match=said):
        archive.read(file, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"\0" * 20_000, b"no tar at all" * 1000, b"\x1f\x8b\x08\0junk"])
def test_any_other_file_is_one_sentence(tmp_path, content):
    (tmp_path / "b.tar").write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(KeepingError, match="nothing was changed"):
        archive.read(tmp_path / "b.tar", tmp_path / "out")
    with pytest.raises(KeepingError, match="is not there"):
        archive.read(tmp_path / "none.tar", tmp_path / "out")
