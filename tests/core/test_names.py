"""User names cannot climb out of anything; server slugs never meet."""

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spawner.core.model import Code
from spawner.core.names import NAME_LENGTH, SLUG_LENGTH, check_name, printable, server_slug

ANY_TEXT = st.text(st.characters(), max_size=400)  # characters() has lone surrogates, which JSON can carry
NAME_LIKE = st.text("ab0-_.{}/ \n", max_size=40)


@pytest.mark.parametrize("name", ["a", "anna", "a.b-c_d", "z9", "a" * 32])
def test_usual_names_pass(name):
    assert check_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("..", id="parent"),
        pytest.param(".", id="dot"),
        pytest.param("a..b", id="two-dots-inside"),
        pytest.param("a/../b", id="path"),
        pytest.param("-v", id="option"),
        pytest.param("{server}", id="template"),
        pytest.param("%41", id="escape"),
        pytest.param("a" * 300, id="300-characters"),
        pytest.param("a" * 33, id="33-characters"),
        pytest.param("", id="empty"),
        pytest.param("anna\n", id="trailing-newline"),
        pytest.param("a\nb", id="newline"),
        pytest.param("a\0b", id="nul"),
        pytest.param("Anna", id="upper-case"),
        pytest.param("ann\u00e4", id="accent"),
        pytest.param("\uff41nna", id="full-width"),
        pytest.param("李", id="chinese"),
        pytest.param("a\u0661", id="arabic-digit"),
        pytest.param("o'neil", id="quote"),
        pytest.param("a@uni.edu", id="realm"),
        pytest.param("a b", id="blank"),
        pytest.param("a\ud800", id="surrogate"),
        pytest.param("a:b", id="colon"),
        pytest.param("9lives", id="digit-first"),
    ],
)
def test_hostile_names_are_refused_with_their_name(name):
    refusal = check_name(name)
    assert refusal is not None
    assert refusal.code is Code.NAME_INVALID
    params = dict(refusal.params)
    assert params["most"] == NAME_LENGTH
    assert str(params["name"]).isprintable()


@given(ANY_TEXT | NAME_LIKE)
def test_what_passes_is_one_harmless_path_component(name):
    if check_name(name) is not None:
        return
    assert PurePosixPath("/homes", name).parent == PurePosixPath("/homes")
    assert re.fullmatch(r"[a-z][a-z0-9._-]*", name, re.ASCII)
    assert len(name) <= NAME_LENGTH
    assert ".." not in name


@given(ANY_TEXT | NAME_LIKE)
@example("")
@example("0")
@example("a--b")
@example("a" * 40)
@example("a" * 41)
@example("\ud800")
@example("İ")
def test_slug_is_legal_in_a_container_name(name):
    slug = server_slug(name)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*[a-z0-9]|[a-z0-9]", slug)
    assert len(slug) <= SLUG_LENGTH


@given(st.lists(NAME_LIKE | ANY_TEXT, unique=True, max_size=30))
@example(["", "0"])
@example(["a-b", "a b", "a_b", "A-b", "a--b", "a-b-", "-a-b"])
@example(["a" * 40, "a" * 41, "a" * 42])
def test_slugs_never_meet(names):
    slugs = [server_slug(name) for name in names]
    assert len(set(slugs)) == len(slugs)


@given(NAME_LIKE | ANY_TEXT)
def test_a_slug_is_not_what_another_name_maps_to(name):
    """The slug of a name, itself used as a name, gets another slug; unless the name was its own slug."""
    slug = server_slug(name)
    assert slug == name or server_slug(slug) != slug


@given(st.from_regex(r"[a-z][a-z0-9]{0,9}(-[a-z0-9]{1,4}){0,3}", fullmatch=True))
def test_plain_server_names_stay_readable(name):
    assert server_slug(name) == name


@given(ANY_TEXT, st.integers(2, 60))
def test_printable_is_short_and_prints(text, limit):
    shown = printable(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()


def test_printable_keeps_what_is_harmless():
    assert printable("张伟 & Söhne") == "张伟 & Söhne"
