"""Groups give roles, and one more group never takes anything away."""

from hypothesis import given
from hypothesis import strategies as st

from spawner.core.entitlements import Role, entitlement_for, roles_for
from spawner.core.model import GIB, Code, Entitlement, Mode, Refusal

GROUPS = ("students", "teachers", "researchers", "staff")
FIELDS = ("gpus", "memory_bytes", "default_memory_bytes", "cpus", "max_runtime_s", "idle_s")


def entitlement(role: str, **changes: object) -> Entitlement:
    values = {
        "role": role,
        "gpus": 1,
        "modes": (Mode.NONE,),
        "memory_bytes": 8 * GIB,
        "default_memory_bytes": 4 * GIB,
        "cpus": 2.0,
        "max_runtime_s": 8 * 3600,
        "idle_s": 3600,
    }
    return Entitlement(**(values | changes))  # type: ignore[arg-type]  # values of a test


def role(name: str, *groups: str, **changes: object) -> Role:
    return Role(name=name, groups=groups, entitlement=entitlement(name, **changes))


@st.composite
def role_lists(draw: st.DrawFn) -> list[Role]:
    names = draw(st.lists(st.sampled_from(("a", "b", "c", "d")), unique=True, min_size=1))
    return [
        role(
            name,
            *draw(st.lists(st.sampled_from(GROUPS), min_size=1, unique=True)),
            gpus=draw(st.integers(0, 8)),
            modes=tuple(draw(st.lists(st.sampled_from(tuple(Mode)), unique=True, min_size=1))),
            memory_bytes=draw(st.integers(1, 64)) * GIB,
            cpus=draw(st.floats(0.5, 64)),
            idle_s=draw(st.integers(1, 10**6)),
        )
        for name in names
    ]


GROUP_LISTS = st.lists(st.sampled_from((*GROUPS, "strangers")), unique=True)


def test_one_role_is_given_as_it_is():
    student = role("student", "students")
    assert entitlement_for(["students", "chess-club"], [student]) == student.entitlement


def test_who_is_in_no_group_of_a_role_is_refused_with_their_groups():
    refusal = entitlement_for(["chess-club", "a\nb"], [role("student", "students")])
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.ROLE_MISSING
    assert dict(refusal.params)["groups"] == "a\\nb, chess-club"


def test_who_has_no_groups_is_refused():
    assert isinstance(entitlement_for([], [role("student", "students")]), Refusal)


def test_several_roles_merge_to_the_most_generous_of_each_field():
    roles = [
        role("student", "students", gpus=1, modes=(Mode.NONE, Mode.EXCLUSIVE), cpus=2.0, idle_s=7200),
        role("assistant", "staff", gpus=4, modes=(Mode.SHARED,), cpus=1.0, idle_s=60),
    ]
    merged = entitlement_for(["students", "staff"], roles)
    assert merged == entitlement(
        "assistant+student", gpus=4, modes=(Mode.EXCLUSIVE, Mode.SHARED, Mode.NONE), cpus=2.0, idle_s=7200
    )


def test_roles_are_named_in_the_order_of_the_settings():
    roles = [role("b", "students"), role("a", "students", "staff"), role("c", "staff")]
    assert roles_for(["students"], roles) == ("b", "a")


@given(GROUP_LISTS, role_lists(), st.randoms())
def test_order_does_not_matter(groups, roles, random):
    before = entitlement_for(groups, roles)
    random.shuffle(groups)
    random.shuffle(roles)
    assert entitlement_for(groups, roles) == before


@given(GROUP_LISTS, st.sampled_from(GROUPS), role_lists())
def test_one_more_group_never_takes_anything_away(groups, more, roles):
    before, after = entitlement_for(groups, roles), entitlement_for([*groups, more], roles)
    if isinstance(before, Refusal):
        return
    assert isinstance(after, Entitlement)
    assert all(getattr(after, field) >= getattr(before, field) for field in FIELDS)
    assert set(after.modes) >= set(before.modes)


@given(GROUP_LISTS, role_lists())
def test_nothing_is_given_that_no_role_of_theirs_has(groups, roles):
    given_ = entitlement_for(groups, roles)
    held = [item.entitlement for item in roles if item.name in roles_for(groups, roles)]
    if isinstance(given_, Refusal):
        assert held == []
        return
    for field in FIELDS:
        assert getattr(given_, field) in {getattr(item, field) for item in held}
