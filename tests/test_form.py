"""The spawn form: what it offers, what it says, and that its HTML is safe and usable without scripts."""

import string
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader
from jupyterhub._data import DATA_FILES_PATH

from spawner import pages
from spawner.core.catalog import Base, Catalog
from spawner.core.limits import ContainerDefaults, limits_for
from spawner.core.model import (
    GIB,
    GPU,
    Claim,
    Code,
    Entitlement,
    Lease,
    Limits,
    MIGInstance,
    Mode,
    Node,
    Placement,
    PlacementRules,
    Refusal,
    Variant,
)
from spawner.core.options import Choice, check_choice, from_form, parse_choice
from spawner.core.policy import place
from spawner.form import SpawnView, render_form, render_refusal, spawn_view
from spawner.messages import Language

CPU = Variant(name="cpu", title="PyTorch on the CPU", torch="2.13.0", python="3.11", image="x/cpu:1", default=True)
PLAIN = Variant(name="plain", title="Plain Python", python="3.11", image="x/plain:1")
CUDA = Variant(name="cu128", title="CUDA", cuda="12.8", image="x/cu128:1", min_driver="570.26", architectures=(80, 90))
STAFF = Variant(name="staff", title="For teachers", image="x/staff:1", roles=("teacher",))
BUILT = {"cpu": "sha256:1", "cu128": "sha256:2", "staff": "sha256:3"}
STUDENT = Entitlement(
    role="student",
    gpus=1,
    modes=(Mode.EXCLUSIVE, Mode.NONE),
    memory_bytes=6 * GIB,
    default_memory_bytes=2 * GIB,
    cpus=1.5,
    max_runtime_s=8 * 3600,
    idle_s=5400,
)
RESEARCHER = replace(STUDENT, role="researcher", gpus=2)
TEACHER = replace(STUDENT, role="teacher", gpus=2, modes=(Mode.EXCLUSIVE, Mode.MIG, Mode.SHARED, Mode.NONE))


def gpu(index: int, **more: Any) -> GPU:
    return GPU(
        uuid=f"GPU-{index}", index=index, name="NVIDIA A100", memory_bytes=80 * GIB, compute_capability=80, **more
    )


SLICES = (
    MIGInstance(uuid="MIG-0", profile="3g.40gb", memory_bytes=40 * GIB),
    MIGInstance(uuid="MIG-1", profile="1g.10gb", memory_bytes=10 * GIB),
)
NODE = Node(name="node-1", gpus=(gpu(0), gpu(1), gpu(2), gpu(3, mig_enabled=True, mig=SLICES)), driver="580.65")


def lease(user: str, *uuids: str, mode: Mode = Mode.EXCLUSIVE) -> Lease:
    then = datetime(2026, 1, 1, tzinfo=UTC)
    return Lease(
        id=f"{user}-{'-'.join(uuids)}",
        hub="h",
        kind="server",
        user=user,
        server="",
        variant="cpu",
        image="sha256:1",
        gpus=uuids,
        mode=mode,
        memory_bytes=GIB,
        cpus=1.0,
        granted=then,
        expires=then,
    )


def share(user: str, uuid: str) -> Lease:
    return lease(user, uuid, mode=Mode.SHARED)


def view(
    entitlement: Entitlement = STUDENT,
    node: Node = NODE,
    leases: tuple[Lease, ...] = (),
    shares_per_gpu: int = 0,
    **more: Any,
) -> SpawnView:
    more = {"rules": PlacementRules(shares_per_gpu=shares_per_gpu)} | more
    return spawn_view((CPU, PLAIN, CUDA, STAFF), BUILT, entitlement, node, leases, user="me", **more)


class Page(HTMLParser):
    """The tags of a page, and whether they nest."""

    VOID = frozenset(("input", "meta", "link", "img", "br"))

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())

    def fields(self, name: str) -> dict[str, dict[str, str | None]]:
        return {str(attrs["value"]): attrs for tag, attrs in self.tags if tag == "input" and attrs.get("name") == name}


def offered(page: Page, name: str) -> list[str]:
    return [value for value, attrs in page.fields(name).items() if "disabled" not in attrs]


def checked(page: Page, name: str) -> list[str]:
    return [value for value, attrs in page.fields(name).items() if "checked" in attrs]


def options(page: Page) -> Iterator[tuple[str, bool]]:
    return ((str(attrs["value"]), "selected" in attrs) for tag, attrs in page.tags if tag == "option")


def test_variants_of_other_roles_are_absent() -> None:
    assert [card.variant.name for card in view().variants] == ["cpu", "plain", "cu128"]
    both = replace(STUDENT, role="student+teacher")
    assert [card.variant.name for card in view(both).variants] == ["cpu", "plain", "cu128", "staff"]


def test_variant_that_is_not_built_is_shown_with_its_reason_and_cannot_be_chosen() -> None:
    page = Page(render_form(view(), "en"))
    assert "disabled" in page.fields("variant")["plain"]
    assert "The image variant plain is not on this machine yet" in page.words


def test_variant_whose_image_is_not_the_recorded_one_is_shown_with_that_reason(monkeypatch) -> None:
    changed = Refusal.of(Code.IMAGE_CHANGED, variant="plain", image="sha256:aa", recorded="sha256:bb")
    monkeypatch.setitem(BUILT, "plain", changed)
    page = Page(render_form(view(), "en"))
    assert "disabled" in page.fields("variant")["plain"]
    assert "here is sha256:aa, recorded is sha256:bb" in page.words


def test_variant_is_refused_where_no_gpu_runs_it() -> None:
    old = view(node=replace(NODE, driver="535.10"))
    refusals = {card.variant.name: card.refusal for card in old.variants}
    assert refusals["cpu"] is None
    assert refusals["cu128"] is not None
    assert refusals["cu128"].code is Code.DRIVER_TOO_OLD


def test_variant_for_gpus_is_refused_on_a_node_without_any() -> None:
    refusals = {card.variant.name: card.refusal for card in view(node=Node(name="n")).variants}
    assert refusals["cu128"] == Refusal.of(Code.NO_GPUS, asked=1, exist=0)


def test_variant_is_offered_when_one_gpu_of_the_node_runs_it() -> None:
    mixed = replace(NODE, gpus=(replace(gpu(0), compute_capability=70), gpu(1)))
    assert all(card.refusal is None for card in view(node=mixed).variants if card.variant.name == "cu128")


@pytest.mark.parametrize(
    ("leases", "free"),
    [
        pytest.param((), 3, id="nothing-leased"),
        pytest.param((lease("you", "GPU-1"),), 2, id="one-leased"),
        pytest.param((lease("you", "MIG-0"),), 3, id="a-slice-is-not-a-whole-gpu"),
        pytest.param((lease("you", "GPU-0", "GPU-1"), lease("me", "GPU-2")), 0, id="all-leased"),
    ],
)
def test_free_counts_whole_gpus_that_nobody_holds(leases: tuple[Lease, ...], free: int) -> None:
    seen = view(leases=leases)
    assert (seen.free, seen.total) == (free, 3)


def test_unhealthy_and_withheld_gpus_exist_but_are_not_free() -> None:
    sick = replace(NODE, gpus=(gpu(0, unhealthy="Xid 79"), gpu(1), gpu(2)))
    seen = view(node=sick, withheld=("GPU-1",))
    assert (seen.free, seen.total) == (1, 3)
    assert [tile.state for tile in seen.tiles] == ["unhealthy", "leased", "free"]
    assert "Xid 79" in render_form(seen, "en")


def test_gpu_choices_end_at_the_entitlement() -> None:
    assert [choice.value for choice in view().gpu_choices] == ["none", "1"]
    assert [choice.value for choice in view(RESEARCHER).gpu_choices] == ["none", "1", "2"]
    assert [choice.value for choice in view(replace(STUDENT, gpus=0, modes=(Mode.NONE,))).gpu_choices] == ["none"]


@pytest.mark.parametrize(
    ("node", "leases", "reason"),
    [
        pytest.param(NODE, (lease("you", "GPU-0", "GPU-1"),), "gpu_leased", id="leased-by-others"),
        pytest.param(NODE, (lease("me", "GPU-0"),), "gpu_held", id="own-other-server"),
        pytest.param(replace(NODE, gpus=(gpu(0),)), (), "gpu_missing", id="more-than-exist"),
    ],
)
def test_gpu_choice_that_cannot_be_had_names_its_reason(node: Node, leases: tuple[Lease, ...], reason: str) -> None:
    seen = view(RESEARCHER, node, leases)
    assert [choice.reason for choice in seen.gpu_choices] == ["", "", reason]
    assert "Cannot be chosen" in Page(render_form(seen, "en")).words


def numbers(seen: SpawnView) -> dict[str, tuple[int, int, str]]:
    return {choice.value: (choice.free, choice.total, choice.reason) for choice in seen.gpu_choices}


@pytest.mark.parametrize(
    ("modes", "shares", "values"),
    [
        pytest.param((Mode.NONE,), 2, ["none"], id="none"),
        pytest.param((Mode.MIG, Mode.NONE), 2, ["none", "mig:1g.10gb", "mig:3g.40gb"], id="each-profile"),
        pytest.param((Mode.SHARED,), 2, ["shared"], id="shared"),
        pytest.param((Mode.SHARED, Mode.NONE), 0, ["none"], id="no-shares-set"),
        pytest.param(TEACHER.modes, 2, ["none", "1", "2", "mig:1g.10gb", "mig:3g.40gb", "shared"], id="all"),
    ],
)
def test_choices_are_those_of_the_modes_of_the_role(modes: tuple[Mode, ...], shares: int, values: list[str]) -> None:
    assert list(numbers(view(replace(TEACHER, modes=modes), shares_per_gpu=shares))) == values


@pytest.mark.parametrize(
    ("leases", "more", "expected"),
    [
        pytest.param((), {}, ((3, 3), (1, 1), (6, 6)), id="nothing-leased"),
        pytest.param((lease("you", "GPU-0"),), {}, ((2, 3), (1, 1), (4, 6)), id="exclusive-offers-no-share"),
        pytest.param((share("you", "GPU-0"),), {}, ((2, 3), (1, 1), (5, 6)), id="a-shared-gpu-is-not-whole"),
        pytest.param((share("you", "GPU-0"), share("they", "GPU-0")), {}, ((2, 3), (1, 1), (4, 6)), id="full"),
        pytest.param(
            tuple(share(user, "GPU-0") for user in "abc"), {}, ((2, 3), (1, 1), (4, 6)), id="more-shares-than-now-set"
        ),
        pytest.param(
            (share("a", "GPU-0"), lease("b", "GPU-0")), {}, ((2, 3), (1, 1), (4, 6)), id="conflict-offers-nothing"
        ),
        pytest.param((lease("you", "MIG-0"),), {}, ((3, 3), (0, 1), (6, 6)), id="instance-leased"),
        pytest.param((lease("you", "GPU-3"),), {}, ((3, 3), (0, 1), (6, 6)), id="parent-leased"),
        pytest.param((), {"withheld": ("GPU-1", "MIG-0")}, ((2, 3), (0, 1), (4, 6)), id="withheld"),
        pytest.param((), {"withheld": ("GPU-3",)}, ((3, 3), (0, 1), (6, 6)), id="parent-withheld"),
        pytest.param(
            (share("you", "GPU-1"),), {"withheld": ("GPU-1",)}, ((2, 3), (1, 1), (4, 6)), id="shared-and-withheld"
        ),
        pytest.param(
            (),
            {"node": replace(NODE, gpus=(gpu(0, unhealthy="Xid 79"), gpu(1), gpu(2), *NODE.gpus[3:]))},
            ((2, 3), (1, 1), (4, 6)),
            id="unhealthy",
        ),
        pytest.param(
            (),
            {"node": replace(NODE, gpus=(*NODE.gpus[:3], replace(NODE.gpus[3], unhealthy="Xid 79")))},
            ((3, 3), (0, 1), (6, 6)),
            id="unhealthy-parent-is-no-whole-gpu",
        ),
    ],
)
def test_free_and_total_count_what_the_choice_is_about(
    leases: tuple[Lease, ...], more: dict[str, Any], expected: tuple[tuple[int, int], ...]
) -> None:
    seen = numbers(view(TEACHER, leases=leases, shares_per_gpu=2, **more))
    assert tuple(seen[value][:2] for value in ("1", "mig:3g.40gb", "shared")) == expected


@pytest.mark.parametrize(
    ("leases", "more", "reasons"),
    [
        pytest.param((), {}, ["", "", "", ""], id="all-free"),
        pytest.param(
            tuple(lease("you", item) for item in ("GPU-0", "GPU-1", "GPU-2", "MIG-0")),
            {},
            ["gpu_leased", "", "gpu_leased", "gpu_leased"],
            id="leased-by-others",
        ),
        pytest.param(
            (share("me", "GPU-0"), share("me", "GPU-0")), {}, ["gpu_held"] * 4, id="two-shares-of-one-gpu-count-as-two"
        ),
        pytest.param((lease("me", "MIG-1"), share("me", "GPU-0")), {}, ["gpu_held"] * 4, id="own-other-servers"),
    ],
)
def test_instances_and_shares_that_cannot_be_had_name_their_reason(
    leases: tuple[Lease, ...], more: dict[str, Any], reasons: list[str]
) -> None:
    seen = numbers(view(TEACHER, leases=leases, shares_per_gpu=2, **more))
    assert [seen[value][2] for value in ("1", "mig:1g.10gb", "mig:3g.40gb", "shared")] == reasons


def test_node_without_gpus_says_so_for_every_mode_and_offers_none() -> None:
    seen = view(TEACHER, Node(name="n"), shares_per_gpu=2)
    assert {value: reason for value, (_, _, reason) in numbers(seen).items()} == {
        "none": "",
        "1": "gpu_missing",
        "2": "gpu_missing",
        "mig": "mig_missing",
        "shared": "share_missing",
    }
    page = Page(render_form(seen, "en"))
    assert offered(page, "gpus") == ["none"]
    assert "this machine has no MIG instance" in page.words


def test_choice_without_a_gpu_stays_whatever_the_other_servers_hold() -> None:
    held = tuple(lease("me", item) for item in ("GPU-0", "GPU-1", "GPU-2"))
    assert numbers(view(leases=held))["none"] == (0, 0, "")


def test_words_of_an_instance_and_of_a_share_say_numbers_memory_and_what_is_not_isolated() -> None:
    words = Page(render_form(view(TEACHER, leases=(share("you", "GPU-0"),), shares_per_gpu=2), "en")).words
    for part in (
        "1 MIG instance 3g.40gb 1 of 1 free, 40 GiB of GPU memory",
        "A share of a GPU 1 of 2 shares of a GPU; 5 of 6 shares free",
        "Not isolated: others on the same GPU can use up its memory and slow you down.",
        "shared, 1 of 2 taken",
    ):
        assert part in words
    assert "ot isolated" not in Page(render_form(view(RESEARCHER, shares_per_gpu=2), "en")).words


@pytest.mark.parametrize(
    ("leases", "shares", "states"),
    [
        pytest.param((share("me", "GPU-0"), share("you", "GPU-1")), 2, ["shared_yours", "shared"], id="shared"),
        pytest.param((share("me", "GPU-0"), share("you", "GPU-1")), 0, ["yours", "leased"], id="no-shares-any-more"),
        pytest.param((share("you", "GPU-0"), lease("they", "GPU-0")), 2, ["leased", "free"], id="conflict"),
    ],
)
def test_picture_shows_shared_gpus_as_shared(leases: tuple[Lease, ...], shares: int, states: list[str]) -> None:
    seen = view(TEACHER, leases=leases, shares_per_gpu=shares)
    assert [tile.state for tile in seen.tiles[:2]] == states
    for language in ("en", "zh"):
        assert render_form(seen, language)


def test_only_the_gpus_that_the_operator_divides_offer_shares_each_its_own_number() -> None:
    rules = PlacementRules(shares_per_gpu=2, shares_by_gpu=(("GPU-1", 4), ("GPU-2", 0)))
    seen = view(TEACHER, leases=(share("me", "GPU-1"), lease("you", "GPU-0")), rules=rules)
    assert numbers(seen)["shared"] == (3, 6, "")
    assert [tile.shares for tile in seen.tiles[:3]] == [2, 4, 0]
    words = Page(render_form(seen, "en")).words
    assert "1 of 2–4 shares of a GPU; 3 of 6 shares free" in words
    assert "yours, shared, 1 of 4 taken" in words
    assert "shared" not in numbers(view(TEACHER, rules=PlacementRules(shares_by_gpu=(("GPU-1", 0),))))


def test_picture_shows_withheld_instances_as_out_of_use_and_not_as_leased() -> None:
    seen = view(TEACHER, leases=(lease("you", "MIG-1"),), withheld=("MIG-0",))
    assert [part.state for part in seen.tiles[3].slices] == ["unhealthy", "leased"]
    assert "3g.40gb out of use" in Page(render_form(seen, "en")).words


def test_share_that_names_an_instance_breaks_no_page() -> None:
    odd = view(TEACHER, leases=(share("you", "MIG-0"),), shares_per_gpu=2)
    assert [part.state for part in odd.tiles[3].slices] == ["leased", "free"]
    assert render_form(odd, "en")


@pytest.mark.parametrize(
    ("previous", "chosen"),
    [
        pytest.param({"mode": "mig", "gpus": 1, "profile": "3g.40gb"}, "mig:3g.40gb", id="profile"),
        pytest.param({"mode": "mig"}, "mig:1g.10gb", id="any-instance"),
        pytest.param({"mode": "mig", "gpus": 1, "profile": "7g.80gb"}, "none", id="profile-is-gone"),
        pytest.param({"mode": "mig", "gpus": 1, "profile": ["x"]}, "none", id="nonsense"),
        pytest.param({"mode": "shared", "gpus": 1}, "shared", id="shared"),
        pytest.param({"mode": "exclusive", "gpus": 1}, "1", id="exclusive"),
    ],
)
def test_previous_mode_is_chosen_again(previous: dict[str, object], chosen: str) -> None:
    page = Page(render_form(view(TEACHER, previous=previous, shares_per_gpu=2), "en"))
    assert checked(page, "gpus") == [chosen]


def test_picture_tells_own_leases_from_others_and_says_no_names() -> None:
    seen = view(leases=(lease("me", "GPU-0"), lease("secret-name", "GPU-1", "MIG-1")))
    assert [tile.state for tile in seen.tiles] == ["yours", "leased", "free", "mig"]
    assert [part.state for part in seen.tiles[3].slices] == ["free", "leased"]
    assert "secret-name" not in render_form(seen, "en")


def test_memory_steps_hold_the_default_and_the_maximum() -> None:
    assert list(options(Page(render_form(view(), "en")))) == [("1G", False), ("2G", True), ("4G", False), ("6G", False)]
    small = replace(STUDENT, memory_bytes=768 << 20, default_memory_bytes=512 << 20)
    assert [choice.value for choice in view(small).memory_choices] == ["512M", "768M"]


@pytest.mark.parametrize(
    ("previous", "chosen"),
    [
        pytest.param(None, ("cpu", "none", "2G"), id="first-time"),
        pytest.param({"variant": "cu128", "gpus": 1, "memory": "4G"}, ("cu128", "1", "4G"), id="as-stored"),
        pytest.param({"variant": "cu128", "gpus": "1", "memory": 4 * GIB}, ("cu128", "1", "4G"), id="other-types"),
        pytest.param(
            {"variant": "plain", "gpus": 9, "memory": "99G"}, ("cpu", "none", "2G"), id="not-offered-any-more"
        ),
        pytest.param({"variant": ["x"], "gpus": {}, "memory": None}, ("cpu", "none", "2G"), id="nonsense"),
    ],
)
def test_previous_choice_is_chosen_again_where_it_is_still_offered(
    previous: dict[str, object] | None, chosen: tuple[str, str, str]
) -> None:
    page = Page(render_form(view(previous=previous), "en"))
    memory = [value for value, selected in options(page) if selected]
    assert (*checked(page, "variant"), *checked(page, "gpus"), *memory) == chosen


def test_everything_offered_is_accepted_by_the_rules_that_judge_it_and_chosen_again() -> None:
    unnamed = MIGInstance(uuid="MIG-2", profile="", memory_bytes=GIB)
    media = MIGInstance(uuid="MIG-3", profile="1g.10gb+me", memory_bytes=10 * GIB)
    split = gpu(3, mig_enabled=True, mig=(*SLICES, unnamed, media))
    node = replace(NODE, gpus=(*NODE.gpus[:3], split), memory_bytes=512 * GIB, cpus=64.0)
    page = Page(render_form(view(TEACHER, node, shares_per_gpu=2), "en"))
    catalog = Catalog(base=Base(image="x", suite="s"), variants=(CPU, PLAIN, CUDA, STAFF), folders=())
    defaults = ContainerDefaults(pids=1, shm_bytes=1, tmp_bytes=1, tmp_inodes=1, nofile=1)
    rules = PlacementRules(shares_per_gpu=2)
    modes = set()
    for variant in offered(page, "variant"):
        for gpus in offered(page, "gpus"):
            for memory, _ in options(page):
                raw = from_form({"variant": [variant], "gpus": [gpus], "memory": [memory]})
                choice = parse_choice(raw, default_variant="cpu")
                assert isinstance(choice, Choice)
                found = check_choice(choice, catalog, TEACHER, ["teacher"])
                assert isinstance(found, Variant)
                limits = limits_for(TEACHER, choice.memory_bytes, defaults)
                assert isinstance(limits, Limits)
                claim = Claim(
                    user="me",
                    server="",
                    variant=found,
                    mode=choice.mode,
                    gpus=choice.gpus,
                    limits=limits,
                    entitlement=TEACHER,
                    profile=choice.profile,
                )
                then = datetime(2026, 1, 1, tzinfo=UTC)
                assert isinstance(place(claim, [node], [], then, rules=rules), Placement)
                again = view(TEACHER, node, previous=raw, shares_per_gpu=2)
                assert [item.value for item in again.gpu_choices if item.chosen] == [gpus]
                modes.add((choice.mode, choice.profile))
    assert {mode for mode, _ in modes} == set(Mode)
    assert {profile for _, profile in modes} == {"", "1g.10gb", "1g.10gb+me", "3g.40gb"}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_html_nests_and_every_control_has_a_label(language: Language) -> None:
    page = Page(render_form(view(TEACHER, leases=(lease("you", "GPU-0"),), notice="Hello", shares_per_gpu=2), language))
    assert page.open == []
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = {attrs["for"] for tag, attrs in page.tags if tag == "label"}
    assert {attrs["id"] for tag, attrs in page.tags if tag in ("input", "select")} <= labelled
    described = {attrs["aria-describedby"] for _, attrs in page.tags if "aria-describedby" in attrs}
    assert described <= set(ids)


def test_form_brings_no_form_tag_and_no_script_of_its_own() -> None:
    tags = {tag for tag, _ in Page(render_form(view(), "en")).tags}
    assert not tags & {"form", "script", "style", "iframe"}


def test_texts_from_outside_are_escaped() -> None:
    evil = '"><script>alert(1)</script>'
    variant = replace(CPU, title=evil, description=evil, torch=evil)
    node = replace(NODE, name=evil, gpus=(replace(gpu(0, unhealthy=evil), name=evil),))
    seen = spawn_view([variant], BUILT, replace(STUDENT, role=evil), node, [], notice=evil)
    assert "<script" not in render_form(seen, "en")


def test_simulated_gpus_are_called_simulated_and_real_ones_are_not() -> None:
    assert "Simulated GPUs" not in render_form(view(), "en")
    seen = view(node=replace(NODE, simulated=True))
    assert "Simulated GPUs: no real GPU is behind this demo" in render_form(seen, "en")
    assert "模拟 GPU" in render_form(seen, "zh")


def test_limits_are_said_in_words() -> None:
    words = Page(render_form(view(), "en")).words
    for part in ("up to 1.5 processors", "1 GPU at a time", "after 8 hours", "after 90 minutes without use"):
        assert part in words
    assert "1 processor " in Page(render_form(view(replace(STUDENT, cpus=1.0)), "en")).words


def test_person_without_a_role_reads_why_there_is_nothing_to_choose() -> None:
    html = render_refusal(Refusal.of(Code.ROLE_MISSING, groups="guests"), "en")
    assert "none of the groups" in html
    assert "<input" not in html


def _texts() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads((Path(pages.__file__).parent / "texts.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", ["form", "pages"])
def test_both_languages_have_the_same_texts_and_placeholders(part: str) -> None:
    english, chinese = _texts()[part]["en"], _texts()[part]["zh"]
    assert list(english) == list(chinese)
    for key, text in english.items():
        names = [
            sorted(name for _, name, _, _ in string.Formatter().parse(side) if name) for side in (text, chinese[key])
        ]
        assert names[0] == names[1], key


def hub_page(name: str, language: str = "en", *, simulated: bool = True, **values: object) -> str:
    """Render a page as JupyterHub does, above its own templates."""
    own = str(Path(DATA_FILES_PATH) / "templates")
    loader = ChoiceLoader(
        [PrefixLoader({"templates": FileSystemLoader([own])}, "/"), FileSystemLoader([str(pages.TEMPLATES), own])]
    )
    hub: dict[str, object] = {
        "base_url": "/hub/",
        "static_url": lambda path, **_: f"/hub/static/{path}",
        "parsed_scopes": {},
    }
    names = pages.template_vars(language, simulated=simulated)
    return Environment(loader=loader, autoescape=True).get_template(name).render(hub | names | values)


def test_every_page_says_simulated_when_gpus_are_and_only_then() -> None:
    for name in ("error.html", "404.html", "not_running.html"):
        assert "Simulated GPUs" in hub_page(name, status_code=404)
        assert "Simulated GPUs" not in hub_page(name, simulated=False, status_code=404)


def test_refused_start_says_its_reason_on_the_spawn_page() -> None:
    html = hub_page(
        "spawn.html", spawner_options_form="<b>form</b>", error_message="No <GPU> is free.", url="/hub/spawn"
    )
    assert "The server was not started" in html
    assert "No &lt;GPU&gt; is free." in html
    assert "<b>form</b>" in html


@pytest.mark.parametrize(
    "message", ["Only (you): hold 9.", "400 SpawnException(reason=gpu-entitlement): Only (you): hold 9."]
)
def test_refusal_is_shown_without_the_name_of_an_exception(message: str) -> None:
    html = hub_page("spawn.html", spawner_options_form="", error_message=message, url="/hub/spawn")
    assert "<p>Only (you): hold 9.</p>" in html


def test_failed_start_says_its_reason_even_where_the_hub_hands_over_only_the_exception() -> None:
    class RefusedError(Exception):
        message = "All 3 GPUs are leased."

    assert "All 3 GPUs are leased." in hub_page("not_running.html", failed=True, exception=RefusedError())
    assert "All 3 GPUs are leased." in hub_page("not_running.html", failed=True, failed_message=RefusedError.message)
    assert "no reason on record" in hub_page("not_running.html", failed=True, exception=ValueError())


def test_not_found_says_what_was_not_found() -> None:
    assert "No such user: bob" in hub_page("404.html", status_code=404, message="No such user: bob")


def test_pages_speak_the_language_of_the_settings() -> None:
    assert "服务器没有运行" in hub_page("not_running.html", "zh")
