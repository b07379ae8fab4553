"""The book of records as the build and the verification write it."""

import threading

import pytest

from deploy import image_records
from deploy.image_records import hub_state, note_signature, read, record
from spawner.core.trust import BOOK, Book, Outcome
from spawner.settings import SettingsError

ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_each_variant_has_its_own_record_and_a_rebuild_replaces_it(tmp_path):
    record("cpu", ID, "1", state=tmp_path)
    record("plain", ID, "2", state=tmp_path)
    record("cpu", OTHER, "3", state=tmp_path)
    built = read(tmp_path).built
    assert {name: (one.image, one.inputs) for name, one in built.items()} == {"cpu": (OTHER, "3"), "plain": (ID, "2")}


def test_what_is_found_current_keeps_the_time_of_its_build(tmp_path, monkeypatch):
    monkeypatch.setattr(image_records, "_now", lambda: "then")
    record("cpu", ID, "1", state=tmp_path)
    monkeypatch.setattr(image_records, "_now", lambda: "now")
    record("cpu", ID, "1", state=tmp_path)
    assert read(tmp_path).built["cpu"].time == "then"


def test_the_book_is_for_its_owner_alone(tmp_path):
    record("cpu", ID, "1", state=tmp_path)
    assert (tmp_path / BOOK).stat().st_mode & 0o777 == 0o600


def test_a_damaged_book_is_begun_anew(tmp_path):
    (tmp_path / BOOK).write_text("{")
    record("cpu", ID, "1", state=tmp_path)
    assert list(read(tmp_path).built) == ["cpu"]


def test_writers_at_the_same_time_lose_nothing(tmp_path):
    key = tmp_path / "key"
    key.write_text("k")
    digests = [f"sha256:{number:064d}" for number in range(8)]
    threads = [
        threading.Thread(
            target=note_signature,
            args=(digest, Outcome.SIGNED),
            kwargs={"key": key, "reference": f"r@{digest}", "state": tmp_path},
        )
        for digest in digests
    ]
    threads += [threading.Thread(target=record, args=(f"v{n}", ID, "1"), kwargs={"state": tmp_path}) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    book = read(tmp_path)
    assert (sorted(book.verified), len(book.built)) == (digests, 8)


def test_no_book_is_an_empty_one(tmp_path):
    assert read(tmp_path) == Book()


def test_the_state_is_that_of_the_settings_or_of_make_run_before_there_are_any(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUCAMPUS_SETTINGS", str(tmp_path / "settings.toml"))
    monkeypatch.setenv("GPUCAMPUS_STATE", str(tmp_path / "early"))
    assert hub_state() == tmp_path / "early"
    (tmp_path / "settings.toml").write_text(f"""
version = 1
state = "{tmp_path}/own"
[sign_in]
issuer = "https://sso.example.org"
client_id = "gpucampus"
client_secret_file = "/etc/gpucampus/client_secret"
[roles.student]
groups = ["students"]
memory = "8G"
default_memory = "4G"
""")
    assert hub_state() == tmp_path / "own"
    (tmp_path / "settings.toml").write_text("version = 1")
    with pytest.raises(SettingsError):
        hub_state()
