"""A disk is full by a number, the fullest is named, and what is unknown is never full."""

import pytest

from spawner.core.disks import Disk, refusal
from spawner.core.model import Code
from spawner.messages import sentence


def disk(used: int, available: int, *names: str) -> Disk:
    return Disk(names=names or ("state",), path="/srv", used_bytes=used, available_bytes=available)


@pytest.mark.parametrize(
    ("used", "available", "percent"),
    [
        pytest.param(0, 100, 0, id="empty"),
        pytest.param(9499, 501, 94, id="rounded-down"),
        pytest.param(95, 5, 95, id="full"),
        pytest.param(100, 0, 100, id="to-the-last-byte"),
        pytest.param(0, 0, 0, id="without-a-size"),
    ],
)
def test_a_disk_is_as_full_as_df_says(used, available, percent):
    assert disk(used, available).percent == percent


def test_nothing_is_refused_below_the_limit_or_while_nothing_is_known():
    assert refusal([]) is None
    assert refusal([disk(94, 6)]) is None


def test_the_fullest_disk_is_named_with_its_number_and_all_that_is_on_it():
    refused = refusal([disk(96, 4), disk(99, 1, "homes", "containers"), disk(10, 90, "x")])
    assert refused is not None
    assert refused.code is Code.DISK_FULL
    text = sentence(refused)
    assert "The disk for homes and containers is 99 % full, and from 95 % on" in text
