"""The policy of images: what is read from the state folder, when, and what each policy makes of it."""

import logging
from pathlib import Path

import pytest

from deploy.image_records import note_signature, record
from spawner.core.model import Code, Variant
from spawner.core.trust import BOOK, Outcome
from spawner.settings import ImageSettings
from spawner.trust import ImageTrust

ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DIGEST = "sha256:" + "d" * 64
LOCAL = Variant(name="cpu", title="CPU", image="gpucampus/cpu:1")
PULLED = Variant(name="cu126", title="CUDA", image=f"registry.example/cu126@{DIGEST}")


def code(refusal: object) -> object:
    return getattr(refusal, "code", None)


def test_a_record_is_seen_without_a_restart(tmp_path):
    trust = ImageTrust(tmp_path, ImageSettings())
    assert code(trust.refusal(LOCAL, ID, ())) is Code.IMAGE_UNRECORDED
    record("cpu", ID, "1", state=tmp_path)
    assert trust.refusal(LOCAL, ID, ()) is None
    record("cpu", OTHER, "2", state=tmp_path)
    assert code(trust.refusal(LOCAL, ID, ())) is Code.IMAGE_CHANGED
    (tmp_path / BOOK).unlink()
    assert code(trust.refusal(LOCAL, OTHER, ())) is Code.IMAGE_UNRECORDED


def test_a_new_key_ends_the_trust_in_what_the_old_one_verified(tmp_path):
    key = tmp_path / "cosign.pub"
    key.write_text("one")
    note_signature(DIGEST, Outcome.SIGNED, key=key, reference=PULLED.image, state=tmp_path)
    trust = ImageTrust(tmp_path, ImageSettings(key=key))
    assert trust.refusal(PULLED, ID, (PULLED.image,)) is None
    key.write_text("another")
    assert code(trust.refusal(PULLED, ID, (PULLED.image,))) is Code.IMAGE_UNVERIFIED
    key.unlink()
    assert code(trust.refusal(PULLED, ID, (PULLED.image,))) is Code.IMAGE_UNVERIFIED


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe"], ids=["no-json", "no-text"])
def test_a_damaged_book_refuses_everything(tmp_path, content, caplog):
    (tmp_path / BOOK).write_bytes(content)
    assert code(ImageTrust(tmp_path, ImageSettings()).refusal(LOCAL, ID, ())) is Code.IMAGE_RECORDS
    assert "cannot be read" in caplog.text


def test_warn_lets_through_and_says_so_and_off_does_not_look(tmp_path, caplog):
    (tmp_path / BOOK).write_text("{")
    with caplog.at_level(logging.WARNING):
        assert ImageTrust(tmp_path, ImageSettings(verify="off")).refusal(LOCAL, ID, ()) is None
        assert not caplog.records
        assert ImageTrust(tmp_path, ImageSettings(verify="warn")).refusal(LOCAL, ID, ()) is None
    assert "this is let through" in caplog.text


def test_the_book_is_read_once_for_many_starts(tmp_path, monkeypatch):
    record("cpu", ID, "1", state=tmp_path)
    trust = ImageTrust(tmp_path, ImageSettings())
    assert trust.refusal(LOCAL, ID, ()) is None
    monkeypatch.setattr(Path, "read_bytes", lambda _path: pytest.fail("the file has not changed"))
    assert trust.refusal(LOCAL, ID, ()) is None
