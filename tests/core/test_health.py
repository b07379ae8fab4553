"""A container's last words about its own check: what can be read is said, and nothing written there can harm."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucampus_tools import health as image_side
from spawner.core.health import STATUS, HealthCode, finding_of

LINE = 'gpucampus-health: {"code": "gpu-missing", "missing": 1, "leased": 2, "gpus": "GPU-1"}'


def test_image_and_hub_agree_on_status_and_mark():
    assert (STATUS, "gpucampus-health: ") == (image_side.STATUS, image_side.MARK)


def test_the_last_line_of_the_check_is_read_whatever_stands_around_it():
    expected = HealthCode.GPU_MISSING, (("gpus", "GPU-1"), ("leased", 2), ("missing", 1))
    assert finding_of(f"noise\n{LINE}\nmore noise\n") == expected


@pytest.mark.parametrize(
    "words",
    [
        "",
        "gpucampus-health: ",
        "gpucampus-health: []",
        'gpucampus-health: "text"',
        'gpucampus-health: {"code": "unheard-of"}',
        'gpucampus-health: {"why": "no code"}',
        'gpucampus-health: {"code": {"a": 1}}',
        "x " + LINE,
        "gpucampus-health: " + "[" * 100_000,
    ],
)
def test_what_is_not_a_line_of_the_check_is_no_finding(words):
    assert finding_of(words) is None


def test_values_cannot_break_a_sentence_or_a_page():
    line = {"code": "broken", "why": "a\nb\x1b[1m" + "c" * 500, "leased": 10**30, "evil": "x", "found": {"a": []}}
    found = finding_of("gpucampus-health: " + json.dumps(line))
    assert found is not None
    values = dict(found[1])
    assert set(values) == {"why", "leased", "found"}
    assert all(isinstance(value, str) and value.isprintable() and len(value) <= 200 for value in values.values())


@given(st.text())
def test_any_text_is_read_or_not_and_raises_nothing(text):
    finding_of(text)
    finding_of("gpucampus-health: " + text)
