"""Hypothesis strategies: whole cluster states, small enough that a failure can be read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from spawner.core.ledger import Orphan
from spawner.core.model import (
    GIB,
    GPU,
    Claim,
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
from spawner.core.policy import place

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
USERS = ("ann", "bob", "cem")
ROLES = ("researcher", "student")
VARIANT = Variant(name="cpu", title="PyTorch on the CPU", image="gpucampus/cpu:1")

NEWER = Variant(name="cu130", title="CUDA 13", image="i:1", min_driver="580.65.06", architectures=(75, 80, 86, 90))


def gpu(number: int, *, unhealthy: str = "", slices: int = 0, capability: int = 80) -> GPU:
    return GPU(
        uuid=f"GPU-{number:08d}",
        index=number,
        name="NVIDIA A100-SXM4-80GB",
        memory_bytes=80 * GIB,
        compute_capability=capability,
        unhealthy=unhealthy,
        mig_enabled=slices > 0,
        mig=tuple(
            MIGInstance(uuid=f"MIG-{number:08d}-{part}", profile="3g.40gb", memory_bytes=40 * GIB)
            for part in range(slices)
        ),
    )


def node(
    *gpus: GPU, name: str = "node-1", driver: str = "570.86.15", memory_bytes: int = 512 * GIB, cpus: float = 64
) -> Node:
    return Node(name=name, gpus=gpus, driver=driver, memory_bytes=memory_bytes, cpus=cpus)


def linked(*groups: Sequence[GPU]) -> tuple[GPU, ...]:
    """The GPUs of all groups; within a group each has an NVLink to each other one."""
    return tuple(
        replace(item, nvlink_peers=tuple(peer.uuid for peer in group if peer != item))
        for group in groups
        for item in group
    )


def entitlement(
    *, gpus: int = 1, modes: tuple[Mode, ...] = (Mode.EXCLUSIVE, Mode.NONE), role: str = "student"
) -> Entitlement:
    return Entitlement(
        role=role,
        gpus=gpus,
        modes=modes,
        memory_bytes=8 * GIB,
        default_memory_bytes=2 * GIB,
        cpus=2,
        max_runtime_s=3600,
        idle_s=600,
    )


LIMITS = Limits(memory_bytes=2 * GIB, cpus=2, pids=512, shm_bytes=GIB, tmp_bytes=GIB, tmp_inodes=1000, nofile=4096)


def claim(
    *,
    user: str = "ann",
    server: str = "",
    gpus: int = 1,
    allowed: int = 1,
    mode: Mode | None = None,
    variant: Variant = VARIANT,
    role: str = "student",
    memory_bytes: int = 2 * GIB,
    cpus: float = 2,
    **wishes: Any,
) -> Claim:
    """A claim of somebody whose role allows every mode; the wishes are the claim's last fields."""
    return Claim(
        user=user,
        server=server,
        variant=variant,
        mode=mode or (Mode.EXCLUSIVE if gpus else Mode.NONE),
        gpus=gpus,
        limits=replace(LIMITS, memory_bytes=memory_bytes, cpus=cpus),
        entitlement=entitlement(gpus=allowed, modes=tuple(Mode), role=role),
        **wishes,
    )


def lease(
    number: int,
    *gpus: str,
    user: str = "bob",
    mode: Mode = Mode.EXCLUSIVE,
    hub: str = "campus",
    node: str = "",
    role: str = "",
    memory_bytes: int = GIB,
    cpus: float = 1.0,
) -> Lease:
    return Lease(
        id=f"lease-{number}",
        hub=hub,
        kind="server",
        user=user,
        server="",
        variant="cpu",
        image="sha256:0",
        gpus=gpus,
        mode=mode if gpus else Mode.NONE,
        memory_bytes=memory_bytes,
        cpus=cpus,
        granted=NOW,
        expires=NOW + timedelta(hours=8),
        node=node,
        role=role,
    )


def granted(number: int, wanted: Claim, answer: Placement) -> Lease:
    """The lease that a placement becomes, as the arbiter writes it."""
    return lease(
        number,
        *answer.gpus,
        user=wanted.user,
        mode=wanted.mode,
        node=answer.node,
        role=answer.role,
        memory_bytes=wanted.limits.memory_bytes,
        cpus=wanted.limits.cpus,
    )


def given_to(wanted: Any, *nodes: Any, leases: Any = (), **more: Any) -> tuple[str, ...] | Refusal:
    """The GPUs of a placement."""
    answer = place(wanted, nodes, leases, NOW, **more)
    return answer.gpus if isinstance(answer, Placement) else answer


def placed_on(wanted: Any, *nodes: Any, leases: Any = (), **more: Any) -> str | Refusal:
    """The machine of a placement."""
    answer = place(wanted, nodes, leases, NOW, **more)
    return answer.node if isinstance(answer, Placement) else answer


def ids(*numbers: int) -> tuple[str, ...]:
    return tuple(f"GPU-{number:08d}" for number in numbers)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Everything that a decision looks at, but the claim."""

    nodes: tuple[Node, ...]
    leases: tuple[Lease, ...]
    orphans: tuple[Orphan, ...]
    withheld: tuple[str, ...]
    rules: PlacementRules

    def place(self, wanted: Claim) -> Placement | Refusal:
        return place(
            wanted, self.nodes, self.leases, NOW, withheld=self.withheld, orphans=self.orphans, rules=self.rules
        )

    def grants(self, claims: Sequence[Claim]) -> Iterator[tuple["Cluster", Claim, Lease]]:
        """Place one claim after the other; each grant with the cluster as it was before."""
        before = self
        for number, wanted in enumerate(claims):
            answer = before.place(wanted)
            if isinstance(answer, Placement):
                lease = granted(100 + number, wanted, answer)
                yield before, wanted, lease
                before = replace(before, leases=(*before.leases, lease))

    def gpu(self, uuid: str) -> GPU:
        """The GPU with this UUID, or the one that has this MIG instance."""
        return next(
            item
            for box in self.nodes
            for item in box.gpus
            if uuid == item.uuid or uuid in [part.uuid for part in item.mig]
        )


FLAVOURS = ("plain", "plain", "plain", "plain", "mig", "mig", "lost", "busy")
MEMORY = (64, 16, 16, 8, 0)  # GiB of a machine
LEASE_MODES = (Mode.EXCLUSIVE, Mode.MIG, Mode.SHARED, Mode.SHARED)


@st.composite
def clusters(
    draw: st.DrawFn, *, most: int = 8, flavours: Sequence[str] = FLAVOURS, memory: Sequence[int] = MEMORY
) -> Cluster:
    """One to three machines with all that can be there, in all states; the leases may contradict each other.

    A property that is about one thing narrows the choice, so that the thing happens in most examples.
    """
    names = ("node-0", "node-1", "node-2")[: draw(st.integers(1, 3))]
    chosen = draw(st.lists(st.sampled_from(flavours), min_size=1, max_size=most))
    found = [_flavoured(number, flavour) for number, flavour in enumerate(chosen)]
    boxes = []
    for start, name in enumerate(names):
        own = found[start :: len(names)]
        own = list(linked(own)) if draw(st.booleans()) else own
        boxes.append(node(*own, name=name, memory_bytes=draw(st.sampled_from(memory)) * GIB, cpus=8))
    uuids = [item.uuid for item in found] + [part.uuid for item in found for part in item.mig]
    where = ("", "gone", *names)
    leases = draw(st.lists(_holding(uuids, where), max_size=4))
    orphans = draw(st.lists(_holding(uuids, where), max_size=1))
    return Cluster(
        nodes=tuple(boxes),
        leases=tuple(replace(item, id=f"lease-{number}") for number, item in enumerate(leases)),
        orphans=tuple(
            Orphan(container="c", name="n", why="newer", gpus=o.gpus, node=o.node, memory_bytes=GIB, cpus=1)
            for o in orphans
        ),
        withheld=tuple(draw(st.lists(st.sampled_from(uuids), max_size=1))),
        rules=draw(rules(uuids, names)),
    )


def _holding(uuids: Sequence[str], where: Sequence[str]) -> st.SearchStrategy[Lease]:
    return st.builds(
        lambda gpus, user, mode, node, role: lease(0, *sorted(gpus), user=user, mode=mode, node=node, role=role),
        st.lists(st.sampled_from(uuids), unique=True, max_size=2),
        st.sampled_from(USERS),
        st.sampled_from(LEASE_MODES),
        st.sampled_from(where),
        st.sampled_from(("", *ROLES)),
    )


def _flavoured(number: int, flavour: str) -> GPU:
    plain = gpu(number, unhealthy="lost" if flavour == "lost" else "", slices=2 if flavour == "mig" else 0)
    return replace(plain, foreign_processes=int(flavour == "busy"))


def rules(uuids: Sequence[str], names: Sequence[str]) -> st.SearchStrategy[PlacementRules]:
    none = [frozenset[str]()] * 4
    caps = ((), (), (), (("student", 2),), (("researcher", 1), ("student", 1)))
    own_shares = ((), ((uuids[0], 0),), ((uuids[0], 1),))
    return st.builds(
        PlacementRules,
        ranking=st.sampled_from(("binpack", "spread")),
        shares_per_gpu=st.sampled_from((2, 3, 0)),
        shares_by_gpu=st.sampled_from(own_shares),
        memory_overcommit=st.sampled_from((1.0, 1.5)),
        cpu_overcommit=st.sampled_from((1.0, 0.5, 4.0)),
        memory_reserve_bytes=st.sampled_from((0, GIB)),
        closed=st.sampled_from([*none, *(frozenset([mark]) for mark in (*uuids, *names))]),
        quarantined=st.sampled_from([*none, *(frozenset([mark]) for mark in uuids)]),
        role_gpus=st.sampled_from(caps),
    )


# How a claim holds GPUs, and how many; what is asked for often stands here often.
SHAPES = (
    (Mode.EXCLUSIVE, 1),
    (Mode.EXCLUSIVE, 1),
    (Mode.EXCLUSIVE, 2),
    (Mode.EXCLUSIVE, 3),
    (Mode.SHARED, 1),
    (Mode.SHARED, 1),
    (Mode.MIG, 1),
    (Mode.MIG, 1),
    (Mode.MIG, 1),
    (Mode.MIG, 2),
    (Mode.NONE, 0),
)
NO_WISH: dict[str, Any] = {}
WISHES = (*[NO_WISH] * 6, {"model": "H100"}, {"model": "a100"}, {"gpu_memory_bytes": 60 * GIB})


def wanting(*modes: Mode) -> st.SearchStrategy[Claim]:
    """Claims in these modes that only what is leased can stand against."""
    return st.builds(
        lambda user, shape, role, memory: claim(
            user=user, mode=shape[0], gpus=shape[1], allowed=8, role=role, memory_bytes=memory * GIB, cpus=0.5
        ),
        st.sampled_from(USERS),
        st.sampled_from([shape for shape in SHAPES if shape[0] in modes and shape != (Mode.MIG, 2)]),
        st.sampled_from(ROLES),
        st.integers(1, 4),
    )


claims = st.builds(
    lambda user, shape, allowed, role, memory, cpus, variant, wish: claim(
        user=user,
        mode=shape[0],
        gpus=shape[1],
        allowed=allowed,
        role=role,
        memory_bytes=memory * GIB,
        cpus=cpus,
        variant=variant,
        **wish,
    ),
    st.sampled_from(USERS),
    st.sampled_from(SHAPES),
    st.sampled_from((8, 8, 8, 2, 1)),
    st.sampled_from((*ROLES, "+".join(ROLES))),
    st.integers(1, 4),
    st.sampled_from((0.5, 1.0, 2.0)),
    st.sampled_from((*[VARIANT] * 6, NEWER)),
    st.sampled_from(WISHES),
)

texts = st.text(max_size=20)
leases = st.builds(
    Lease,
    id=st.text(min_size=1, max_size=20),
    hub=texts,
    kind=st.sampled_from(["server", "grade", "shell"]),
    user=texts,
    server=texts,
    variant=texts,
    image=texts,
    gpus=st.lists(st.integers(0, 9).map(lambda n: f"GPU-{n}"), unique=True, max_size=4).map(
        lambda ids: tuple(sorted(ids))
    ),
    mode=st.sampled_from(list(Mode)),
    memory_bytes=st.integers(0, 1 << 50),
    cpus=st.floats(0, 1024, allow_nan=False),
    node=texts,
    role=texts,
    granted=st.datetimes(timezones=st.just(UTC)),
    expires=st.datetimes(timezones=st.just(UTC)),
)
