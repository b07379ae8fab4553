"""Hypothesis strategies: whole cluster states, small enough that a failure can be read."""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from spawner.core.model import GIB, GPU, Claim, Entitlement, Lease, Limits, MIGInstance, Mode, Node, Variant

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
USERS = ("ann", "bob", "cem")
VARIANT = Variant(name="cpu", title="PyTorch on the CPU", image="gpucampus/cpu:1")


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


def node(*gpus: GPU, name: str = "node-1", driver: str = "570.86.15") -> Node:
    return Node(name=name, gpus=gpus, driver=driver, memory_bytes=512 * GIB, cpus=64)


def entitlement(*, gpus: int = 1, modes: tuple[Mode, ...] = (Mode.EXCLUSIVE, Mode.NONE)) -> Entitlement:
    return Entitlement(
        role="student",
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
) -> Claim:
    return Claim(
        user=user,
        server=server,
        variant=variant,
        mode=mode or (Mode.EXCLUSIVE if gpus else Mode.NONE),
        gpus=gpus,
        limits=LIMITS,
        entitlement=entitlement(gpus=allowed),
    )


def lease(number: int, *gpus: str, user: str = "bob", mode: Mode = Mode.EXCLUSIVE, hub: str = "campus") -> Lease:
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
        memory_bytes=GIB,
        cpus=1.0,
        granted=NOW,
        expires=NOW + timedelta(hours=8),
    )


gpus = st.builds(
    lambda number, unhealthy, slices: gpu(number, unhealthy=unhealthy, slices=slices),
    st.integers(0, 11),
    st.sampled_from(["", "", "", "lost"]),
    st.sampled_from([0, 0, 0, 2]),
)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[tuple[Node, ...], tuple[Lease, ...]]:
    """One to three nodes and leases on some of their GPUs, no GPU in two of them."""
    found = draw(st.lists(gpus, unique_by=lambda g: g.uuid, max_size=8))
    count = draw(st.integers(1, 3))
    nodes = tuple(node(*found[start::count], name=f"node-{start}") for start in range(count))
    uuids = [g.uuid for g in found] + [part.uuid for g in found for part in g.mig]
    taken = draw(st.lists(st.sampled_from(uuids), unique=True, max_size=6)) if uuids else []
    leases = tuple(lease(number, uuid, user=draw(st.sampled_from(USERS))) for number, uuid in enumerate(taken))
    return nodes, leases


claims = st.builds(
    lambda user, count, allowed: claim(user=user, gpus=count, allowed=allowed),
    st.sampled_from(USERS),
    st.integers(0, 4),
    st.integers(0, 4),
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
    granted=st.datetimes(timezones=st.just(UTC)),
    expires=st.datetimes(timezones=st.just(UTC)),
)
