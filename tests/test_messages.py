"""Every code has its sentence, in both languages, and says the same numbers in both."""

import string

import pytest

from spawner.core.catalog import runs_on
from spawner.core.exits import End, EndCode
from spawner.core.health import HealthCode
from spawner.core.model import Code, Refusal, Variant
from spawner.core.shares import NoticeCode
from spawner.messages import TEXTS, Phase, ended, phase, sentence, size


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("code", [*Code, *EndCode, *HealthCode, *NoticeCode, *Phase])
def test_every_code_has_a_sentence_in_both_languages(code):
    english, chinese = TEXTS[code]["en"], TEXTS[code]["zh"]
    assert fields(english) == fields(chinese)
    assert english.endswith(".")
    assert chinese.endswith("。")


def test_a_refusal_says_its_numbers():
    refusal = Refusal.of(Code.GPUS_LEASED, asked=1, leased=4, exist=4)
    assert "4 of 4 are leased" in sentence(refusal)
    assert "已租出 4 个" in sentence(refusal, "zh")


def test_sizes_are_said_in_gib():
    assert "64 GiB" not in ended(End(code=EndCode.OUT_OF_MEMORY, params=(("memory", 8 << 30),)))
    assert "8 GiB" in ended(End(code=EndCode.OUT_OF_MEMORY, params=(("memory", 8 << 30),)))
    assert size(1536 << 20) == "1.5"
    assert size(256 << 20) == "0.25"


def test_what_people_sent_is_never_a_template():
    assert "{leased}" in sentence(Refusal.of(Code.VARIANT_UNKNOWN, variant="{leased}"))


def test_a_step_says_what_is_held():
    assert phase(Phase.PLACED, gpus=2, simulated=" (simulated)") == "You hold 2 GPU(s) (simulated)."


def test_a_driver_that_is_too_old_is_named_beside_the_one_that_is_needed():
    cu130 = Variant(name="cu130", title="CUDA 13", image="x:1", min_driver="580.65.06", architectures=(80,))
    refused = runs_on(cu130, "550.54.14", 80)
    assert refused is not None
    assert "cu130 needs driver 580.65.06; this node has 550.54.14" in sentence(refused)
    assert "cu130 需要驱动 580.65.06；本节点为 550.54.14" in sentence(refused, "zh")
