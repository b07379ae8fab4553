"""Only the very image that was recorded may be started."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core.model import Code, Variant
from spawner.core.trust import Book, BookError, Built, Outcome, Verdict, digest_of, judge, parse, text_of

ID, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
DIGEST = "sha256:" + "d" * 64
LOCAL = Variant(name="cpu", title="CPU", image="gpucampus/cpu:1")
PULLED = Variant(name="cu126", title="CUDA", image=f"registry.example:5000/campus/cu126@{DIGEST}")
BUILT = Book(built={"cpu": Built(image=ID, inputs="1", time="then")})
SIGNED = Verdict(outcome=Outcome.SIGNED, key="k1", reference=PULLED.image, time="then")


def code(refusal: object) -> object:
    return getattr(refusal, "code", None)


@pytest.mark.parametrize(
    ("image", "book", "expected"),
    [
        pytest.param(ID, BUILT, None, id="recorded"),
        pytest.param(OTHER, BUILT, Code.IMAGE_CHANGED, id="changed-tag"),
        pytest.param(ID, Book(), Code.IMAGE_UNRECORDED, id="no-record"),
        pytest.param(ID, Book(built={"plain": BUILT.built["cpu"]}), Code.IMAGE_UNRECORDED, id="record-of-another"),
    ],
)
def test_a_local_image_is_known_by_the_id_that_its_build_recorded(image, book, expected):
    assert code(judge(LOCAL, image, (), book, "")) == expected


@pytest.mark.parametrize(
    ("verdict", "key", "expected"),
    [
        pytest.param(SIGNED, "k1", None, id="signed"),
        pytest.param(None, "k1", Code.IMAGE_UNVERIFIED, id="never-verified"),
        pytest.param(SIGNED, "", Code.IMAGE_UNVERIFIED, id="no-key"),
        pytest.param(SIGNED, "k2", Code.IMAGE_UNVERIFIED, id="the-key-was-replaced"),
        pytest.param(replace(SIGNED, outcome=Outcome.UNSIGNED), "k1", Code.IMAGE_UNSIGNED, id="unsigned"),
        pytest.param(replace(SIGNED, outcome=Outcome.WRONG_KEY), "k1", Code.IMAGE_WRONG_KEY, id="wrong-key"),
    ],
)
def test_an_image_of_a_registry_needs_a_signature_that_was_verified_with_the_present_key(verdict, key, expected):
    book = Book(verified={DIGEST: verdict} if verdict else {})
    assert code(judge(PULLED, ID, (PULLED.image,), book, key)) == expected


def test_an_image_under_another_digest_is_refused_although_the_signature_of_the_recorded_one_is_good():
    book = Book(verified={DIGEST: SIGNED})
    assert code(judge(PULLED, ID, (f"registry.example:5000/campus/cu126@{OTHER}",), book, "k1")) is Code.IMAGE_CHANGED
    assert code(judge(PULLED, ID, (), book, "k1")) is Code.IMAGE_CHANGED


def test_a_local_record_does_not_stand_in_for_a_signature():
    book = Book(built={"cu126": Built(image=ID, inputs="1", time="then")})
    assert code(judge(PULLED, ID, (PULLED.image,), book, "k1")) is Code.IMAGE_UNVERIFIED


@pytest.mark.parametrize(
    ("reference", "digest"),
    [(PULLED.image, DIGEST), ("a/b:1", ""), ("registry:5000/a", ""), ("a@sha256:12", ""), (DIGEST, "")],
)
def test_only_a_reference_by_a_whole_digest_has_one(reference, digest):
    assert digest_of(reference) == digest


texts = st.text(max_size=20)
books = st.builds(
    Book,
    built=st.dictionaries(texts, st.builds(Built, image=texts, inputs=texts, time=texts), max_size=3),
    verified=st.dictionaries(
        texts,
        st.builds(Verdict, outcome=st.sampled_from(Outcome), key=texts, reference=texts, time=texts),
        max_size=3,
    ),
)


@given(books)
def test_what_is_written_is_read_again(book):
    assert parse(text_of(book)) == book


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"version": 2, "built": {}, "verified": {}}',
        '{"version": 1, "built": {}}',
        '{"version": 1, "built": [], "verified": {}}',
        '{"version": 1, "built": {"cpu": {"image": 1}}, "verified": {}}',
        '{"version": 1, "built": {"cpu": {"image": "a", "more": "b"}}, "verified": {}}',
        '{"version": 1, "built": {}, "verified": {"d": {"outcome": "fine"}}}',
    ],
)
def test_a_damaged_book_is_an_error_and_never_an_empty_one(text):
    with pytest.raises(BookError):
        parse(text)
