"""Whatever is sent, the answer is a choice with exact types or a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spawner.core import catalog as catalogs
from spawner.core.model import Code, Mode, Refusal
from spawner.core.options import MAX_OPTIONS_BYTES, Choice, check_choice, from_form, parse_choice, parse_size
from spawner.messages import sentence
from tests.core.test_catalog import TEXT
from tests.core.test_entitlements import entitlement

CATALOG = catalogs.parse(TEXT)
STUDENT = entitlement("student", gpus=1, modes=(Mode.EXCLUSIVE, Mode.NONE))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=50),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "variant": JSON | st.sampled_from(("cpu", "cuda")),
        "mode": JSON | st.sampled_from(tuple(mode.value for mode in Mode)),
        "gpus": JSON | st.integers(0, 3),
        "memory": JSON | st.sampled_from(("4G", "512M", "1TiB")),
        "profile": JSON | st.sampled_from(("3g.40gb", "1g.10gb+me")),
        "model": JSON | st.sampled_from(("A100", "RTX 4090")),
        "gpu_memory": JSON | st.sampled_from(("40G", 1 << 30)),
    },
)


def nested(depth: int) -> list[object]:
    """Lists in lists, deeper than the interpreter's stack."""
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def parsed(raw: object) -> Choice | Refusal:
    return parse_choice(raw, default_variant="cpu")


def choice(**changes: object) -> Choice:
    values = {"variant": "cpu", "mode": Mode.NONE, "gpus": 0, "memory_bytes": None}
    return Choice(**(values | changes))  # type: ignore[arg-type]  # values of a test


def test_nothing_chosen_is_the_default_variant_without_gpu():
    assert parsed({}) == choice()


def test_a_whole_choice_is_read():
    raw = {"variant": "cuda", "mode": "exclusive", "gpus": 2, "memory": "4G"}
    assert parsed(raw) == choice(variant="cuda", mode=Mode.EXCLUSIVE, gpus=2, memory_bytes=4 << 30)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        pytest.param({"mode": "mig", "gpus": 1}, choice(mode=Mode.MIG, gpus=1), id="any-instance"),
        pytest.param({"mode": "mig"}, choice(mode=Mode.MIG, gpus=1), id="there-is-never-more-than-one-instance"),
        pytest.param(
            {"mode": "mig", "profile": "1g.10gb+me"}, choice(mode=Mode.MIG, gpus=1, profile="1g.10gb+me"), id="profile"
        ),
        pytest.param({"mode": "shared"}, choice(mode=Mode.SHARED, gpus=1), id="one-share"),
        pytest.param(
            {"mode": "exclusive", "gpus": 2, "model": "RTX 4090", "gpu_memory": "20G"},
            choice(mode=Mode.EXCLUSIVE, gpus=2, model="RTX 4090", gpu_memory_bytes=20 << 30),
            id="model-and-memory",
        ),
    ],
)
def test_ways_to_hold_a_gpu_and_wishes(raw, expected):
    assert parsed(raw) == expected


def test_99_gpus_are_well_typed_and_left_to_the_entitlement():
    assert parsed({"mode": "exclusive", "gpus": 99}) == choice(mode=Mode.EXCLUSIVE, gpus=99)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(None, Code.OPTION_TYPE, id="null"),
        pytest.param([], Code.OPTION_TYPE, id="list"),
        pytest.param("cpu", Code.OPTION_TYPE, id="text"),
        pytest.param(7, Code.OPTION_TYPE, id="number"),
        pytest.param(float("nan"), Code.OPTION_TYPE, id="nan"),
        pytest.param(object(), Code.OPTION_TYPE, id="object"),
        pytest.param({"variant": b"cpu"}, Code.OPTION_TYPE, id="bytes"),
        pytest.param({"variant": {"cpu"}}, Code.OPTION_TYPE, id="set"),
        pytest.param({(1, 2): 3}, Code.OPTION_TYPE, id="tuple-as-key"),
        pytest.param({"variant": nested(100_000)}, Code.OPTION_TYPE, id="nested-100000-deep"),
        pytest.param({"gpus": 10**6000}, Code.OPTION_TYPE, id="number-of-6000-digits"),
        pytest.param({"variant": "x" * 1_000_000}, Code.OPTIONS_TOO_LARGE, id="1-MB"),
        pytest.param({f"k{i}": 0 for i in range(1000)}, Code.OPTIONS_TOO_LARGE, id="1000-keys"),
        pytest.param({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, Code.OPTION_UNKNOWN, id="env"),
        pytest.param({"mounts": ["/:/host"]}, Code.OPTION_UNKNOWN, id="mounts"),
        pytest.param({"image": "evil"}, Code.OPTION_UNKNOWN, id="image"),
        pytest.param({"Variant": "cpu"}, Code.OPTION_UNKNOWN, id="case"),
        pytest.param({1: "cpu"}, Code.OPTION_UNKNOWN, id="number-as-key"),
        pytest.param({"variant": None}, Code.OPTION_TYPE, id="variant-null"),
        pytest.param({"variant": ["cpu"]}, Code.OPTION_TYPE, id="variant-list"),
        pytest.param({"mode": "EXCLUSIVE", "gpus": 1}, Code.OPTION_TYPE, id="mode-case"),
        pytest.param({"mode": ["none"]}, Code.OPTION_TYPE, id="mode-list"),
        pytest.param({"mode": None}, Code.OPTION_TYPE, id="mode-null"),
        pytest.param({"gpus": True, "mode": "exclusive"}, Code.OPTION_TYPE, id="gpus-bool"),
        pytest.param({"gpus": 1.0, "mode": "exclusive"}, Code.OPTION_TYPE, id="gpus-float"),
        pytest.param({"gpus": "1", "mode": "exclusive"}, Code.OPTION_TYPE, id="gpus-text"),
        pytest.param({"gpus": -1, "mode": "exclusive"}, Code.OPTION_TYPE, id="gpus-negative"),
        pytest.param({"gpus": 10**100, "mode": "exclusive"}, Code.OPTION_TYPE, id="gpus-absurd"),
        pytest.param({"gpus": 1}, Code.OPTION_TYPE, id="gpus-without-mode"),
        pytest.param({"mode": "exclusive"}, Code.OPTION_TYPE, id="mode-without-gpus"),
        pytest.param({"mode": "none", "gpus": 1}, Code.OPTION_TYPE, id="none-with-gpus"),
        pytest.param({"mode": "mig", "gpus": 2}, Code.MIG_ONE, id="two-instances"),
        pytest.param({"mode": "shared", "gpus": 2}, Code.SHARED_ONE, id="two-shares"),
        pytest.param({"mode": "mig", "gpus": 0}, Code.OPTION_TYPE, id="mig-without-an-instance"),
        pytest.param({"mode": "mig", "profile": "../3g"}, Code.OPTION_TYPE, id="profile-of-a-path"),
        pytest.param({"mode": "mig", "profile": "3g.40gb\n"}, Code.OPTION_TYPE, id="profile-newline"),
        pytest.param({"mode": "mig", "profile": 3}, Code.OPTION_TYPE, id="profile-number"),
        pytest.param({"mode": "exclusive", "gpus": 1, "profile": "3g.40gb"}, Code.OPTION_TYPE, id="profile-of-a-whole"),
        pytest.param({"model": "A100"}, Code.OPTION_TYPE, id="model-without-gpu"),
        pytest.param({"mode": "shared", "model": "A" * 41}, Code.OPTION_TYPE, id="model-long"),
        pytest.param({"mode": "shared", "model": ""}, Code.OPTION_TYPE, id="model-empty"),
        pytest.param({"mode": "shared", "model": ["A100"]}, Code.OPTION_TYPE, id="model-list"),
        pytest.param({"gpu_memory": "40G"}, Code.OPTION_TYPE, id="gpu-memory-without-gpu"),
        pytest.param({"mode": "shared", "gpu_memory": True}, Code.OPTION_TYPE, id="gpu-memory-bool"),
        pytest.param({"memory": None}, Code.OPTION_TYPE, id="memory-null"),
        pytest.param({"memory": True}, Code.OPTION_TYPE, id="memory-bool"),
        pytest.param({"memory": 4e9}, Code.OPTION_TYPE, id="memory-float"),
        pytest.param({"memory": 0}, Code.OPTION_TYPE, id="memory-zero"),
        pytest.param({"memory": -1}, Code.OPTION_TYPE, id="memory-unlimited"),
        pytest.param({"memory": "-4G"}, Code.OPTION_TYPE, id="memory-negative-text"),
        pytest.param({"memory": "4G\n"}, Code.OPTION_TYPE, id="memory-newline"),
        pytest.param({"memory": "٤G"}, Code.OPTION_TYPE, id="memory-arabic-digit"),
        pytest.param({"memory": "9999999999T"}, Code.OPTION_TYPE, id="memory-absurd"),
    ],
)
def test_forged_options_are_refused_with_a_sentence(raw, code):
    refusal = parsed(raw)
    assert isinstance(refusal, Refusal)
    assert refusal.code is code
    for language in ("en", "zh"):
        said = sentence(refusal, language)
        assert said.isprintable()
        assert "?" not in said
        assert len(said) < 300


def test_unknown_key_is_named_short_and_printable():
    refusal = parsed({"a\n\x1b[31m" + "b" * 500: 1})
    assert isinstance(refusal, Refusal)
    name = dict(refusal.params)["option"]
    assert isinstance(name, str)
    assert name.startswith("a\\n\\x1b[31m")
    assert len(name) <= 40


def test_the_size_limit_is_exact():
    room = MAX_OPTIONS_BYTES - len(json.dumps({"variant": ""}))
    assert isinstance(parsed({"variant": "x" * room}), Choice)
    refusal = parsed({"variant": "x" * (room + 1)})
    assert refusal == Refusal.of(Code.OPTIONS_TOO_LARGE, bytes=MAX_OPTIONS_BYTES + 1, most=MAX_OPTIONS_BYTES)


@given(JSON | OPTIONS)
def test_every_json_is_a_choice_of_exact_types_or_a_refusal(raw):
    answer = parsed(raw)
    if isinstance(answer, Refusal):
        assert sentence(answer).isprintable()
        return
    assert type(answer.variant) is str
    assert type(answer.mode) is Mode
    assert type(answer.gpus) is int
    assert (answer.gpus == 0) == (answer.mode is Mode.NONE)
    assert answer.gpus <= 1 or answer.mode is Mode.EXCLUSIVE
    assert answer.memory_bytes is None or (type(answer.memory_bytes) is int and answer.memory_bytes > 0)
    assert {type(answer.profile), type(answer.model), type(answer.gpu_memory_bytes)} == {str, int}
    assert answer.mode is Mode.MIG or not answer.profile
    assert answer.gpus > 0 or not (answer.model or answer.gpu_memory_bytes)
    assert set(raw) <= {"variant", "mode", "gpus", "memory", "profile", "model", "gpu_memory"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("512M", 512 << 20),
        ("4G", 4 << 30),
        ("4Gi", 4 << 30),
        ("4GiB", 4 << 30),
        ("1T", 1 << 40),
        ("4096", 4096),
        (4096, 4096),
        ("4 G", None),
        ("4g", None),
        ("04G", None),
        ("", None),
        ("4.5G", None),
        (1 << 51, None),
    ],
)
def test_sizes(value, expected):
    assert parse_size(value) == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        pytest.param(
            {"variant": ["cpu"], "gpus": ["none"], "memory": ["4G"]}, choice(memory_bytes=4 << 30), id="no-gpu"
        ),
        pytest.param(
            {"variant": ["cuda"], "gpus": ["2"]}, choice(variant="cuda", mode=Mode.EXCLUSIVE, gpus=2), id="gpus"
        ),
        pytest.param({"variant": ["cpu"], "gpus": ["none"], "memory": [""]}, choice(), id="memory-left-empty"),
        pytest.param({"_xsrf": ["2|abc"]}, choice(), id="xsrf-is-dropped"),
        pytest.param({"gpus": ["mig"]}, choice(mode=Mode.MIG, gpus=1), id="any-instance"),
        pytest.param({"gpus": ["mig:3g.40gb"]}, choice(mode=Mode.MIG, gpus=1, profile="3g.40gb"), id="profile"),
        pytest.param(
            {"gpus": ["shared"], "model": [""], "gpu_memory": [""]}, choice(mode=Mode.SHARED, gpus=1), id="share"
        ),
    ],
)
def test_the_form_gives_a_choice(form, expected):
    assert parsed(from_form(form)) == expected


@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param({"env": ["x"]}, Code.OPTION_UNKNOWN, id="unknown-field"),
        pytest.param({"gpus": ["1", "2"]}, Code.OPTION_TYPE, id="field-twice"),
        pytest.param({"gpus": ["-1"]}, Code.OPTION_TYPE, id="negative"),
        pytest.param({"gpus": ["１"]}, Code.OPTION_TYPE, id="full-width-digit"),
        pytest.param({"gpus": ["99999"]}, Code.OPTION_TYPE, id="absurd"),
        pytest.param({"gpus": [""]}, Code.OPTION_TYPE, id="empty"),
        pytest.param({"gpus": ["mig:"]}, Code.OPTION_TYPE, id="profile-empty"),
        pytest.param({"gpus": ["mig:3g.40gb"], "mode": ["shared"]}, Code.OPTION_TYPE, id="profile-against-mode"),
        pytest.param({"gpus": ["1"], "mode": ["none"]}, Code.OPTION_TYPE, id="mode-against-gpus"),
        pytest.param({"variant": []}, Code.OPTION_TYPE, id="no-value"),
        pytest.param({"f_file": [{"filename": "x", "body": b"x"}]}, Code.OPTION_TYPE, id="upload"),
    ],
)
def test_a_forged_form_is_refused(form, code):
    refusal = parsed(from_form(form))
    assert isinstance(refusal, Refusal)
    assert refusal.code is code


@given(
    st.dictionaries(
        st.text(max_size=10) | st.sampled_from(("gpus", "memory")), st.lists(st.text(max_size=10), max_size=3)
    )
)
def test_the_form_drops_nothing_but_xsrf_and_what_was_left_empty(form):
    raw = from_form(form)
    assert set(form) - {"_xsrf", "memory", "model", "gpu_memory"} <= set(raw)
    assert isinstance(parsed(raw), Choice | Refusal)


def check(chosen: Choice, *roles: str) -> object:
    return check_choice(chosen, CATALOG, STUDENT, roles or ("student",))


def test_an_allowed_choice_gives_its_variant():
    assert check(choice(mode=Mode.EXCLUSIVE, gpus=1)) == CATALOG.get("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "../cpu", "cpu\n", "x" * 3000, "\ud800"])
def test_an_unknown_variant_is_refused_by_name(name):
    refusal = check(choice(variant=name))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.VARIANT_UNKNOWN
    assert sentence(refusal).isprintable()


def test_a_variant_of_other_roles_is_refused():
    refusal = check(choice(variant="cuda"))
    assert refusal == Refusal.of(Code.VARIANT_NOT_ALLOWED, variant="cuda", role="student")
    assert check(choice(variant="cuda"), "student", "teacher") == CATALOG.get("cuda")


def test_more_gpus_than_the_role_has_are_refused_with_both_numbers():
    refusal = check_choice(choice(mode=Mode.EXCLUSIVE, gpus=99), CATALOG, STUDENT, ["student"], held=1)
    assert refusal == Refusal.of(Code.GPU_ENTITLEMENT, asked=99, held=1, allowed=1)


def test_a_mode_that_the_role_has_not_is_refused():
    refusal = check(choice(mode=Mode.MIG, gpus=1))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.MODE_NOT_ALLOWED
    assert dict(refusal.params)["allowed"] == "exclusive, none"
