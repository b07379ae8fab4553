"""The values that the rules work on.

Every value is frozen and made of frozen parts, so that a snapshot taken for one decision cannot change under it.
Sizes are bytes, processors are counts (1.5 is one and a half), times are timezone-aware UTC. A GPU is its UUID; an
index is only ever displayed.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal

__all__ = [
    "GIB",
    "GPU",
    "Claim",
    "Code",
    "Entitlement",
    "Lease",
    "Limits",
    "MIGInstance",
    "Mode",
    "Node",
    "Person",
    "Placement",
    "PlacementRules",
    "Refusal",
    "Variant",
    "lease_for",
]

GIB = 1 << 30


class Mode(StrEnum):
    """How a server holds GPUs."""

    EXCLUSIVE = "exclusive"
    MIG = "mig"
    SHARED = "shared"
    NONE = "none"


class Code(StrEnum):
    """Why something was refused; messages.py turns a code and its numbers into the sentence a person reads."""

    GPUS_LEASED = "gpus-leased"
    INSTANCES_LEASED = "instances-leased"
    SHARES_LEASED = "shares-leased"
    GPU_ENTITLEMENT = "gpu-entitlement"
    ROLE_GPUS = "role-gpus"
    ROLE_MISSING = "role-missing"
    MODE_NOT_ALLOWED = "mode-not-allowed"
    MODE_NOT_OFFERED = "mode-not-offered"
    MIG_ONE = "mig-one"
    SHARED_ONE = "shared-one"
    VARIANT_UNKNOWN = "variant-unknown"
    VARIANT_NOT_ALLOWED = "variant-not-allowed"
    VARIANT_NOT_BUILT = "variant-not-built"
    IMAGE_LABELS = "image-labels"
    IMAGE_CHANGED = "image-changed"
    IMAGE_UNRECORDED = "image-unrecorded"
    IMAGE_UNVERIFIED = "image-unverified"
    IMAGE_UNSIGNED = "image-unsigned"
    IMAGE_WRONG_KEY = "image-wrong-key"
    IMAGE_RECORDS = "image-records"
    DRIVER_TOO_OLD = "driver-too-old"
    ARCHITECTURE = "architecture"
    GPU_MODEL = "gpu-model"
    GPU_MEMORY = "gpu-memory"
    MIG_PROFILE = "mig-profile"
    GPU_UNHEALTHY = "gpu-unhealthy"
    GPU_QUARANTINED = "gpu-quarantined"
    GPU_CLOSED = "gpu-closed"
    GPU_FOREIGN = "gpu-foreign"
    NO_GPUS = "no-gpus"
    NODES_CLOSED = "nodes-closed"
    HOST_MEMORY = "host-memory"
    HOST_CPUS = "host-cpus"
    MEMORY_RANGE = "memory-range"
    OPTION_UNKNOWN = "option-unknown"
    OPTION_TYPE = "option-type"
    OPTIONS_TOO_LARGE = "options-too-large"
    NAME_INVALID = "name-invalid"
    PERSON_UNKNOWN = "person-unknown"
    PERSON_CONFLICT = "person-conflict"
    UIDS_EXHAUSTED = "uids-exhausted"
    HOME_OWNER = "home-owner"
    HOME_NOT_FOLDER = "home-not-folder"
    HOME_UNAVAILABLE = "home-unavailable"
    DISK_FULL = "disk-full"
    ENGINE_UNKNOWN = "engine-unknown"
    ENGINE_REFUSED = "engine-refused"
    GPU_DRIVER_MISMATCH = "gpu-driver-mismatch"
    GPU_GONE = "gpu-gone"
    GPU_RUNTIME_MISSING = "gpu-runtime-missing"
    HUB_BLOCKED = "hub-blocked"
    NOT_CHOSEN = "not-chosen"
    NOT_ANSWERING = "not-answering"


@dataclass(frozen=True, slots=True, kw_only=True)
class MIGInstance:
    """One slice of a GPU in MIG mode; a server may hold exactly one.

    `foreign_processes` are those on this instance that belong to none of our containers; the ones that cannot be told
    apart by instance are counted on the GPU.
    """

    uuid: str
    profile: str  # such as "3g.40gb"
    memory_bytes: int
    foreign_processes: int = 0
    devices: tuple[str, ...] = ()  # host device nodes beside the parent's, for the injection "nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """One physical GPU as the inventory saw it.

    `unhealthy` is empty for a good GPU, else a short reason; a GPU that is unhealthy is never placed and its lease is
    never freed. `compute_capability` is ten times the version: 8.6 is 86. `foreign_processes` are those on it that
    belong to none of our containers; `nvlink_peers` are the UUIDs of the GPUs that it has a direct NVLink or NVSwitch
    path to.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    compute_capability: int
    unhealthy: str = ""
    mig_enabled: bool = False
    mig: tuple[MIGInstance, ...] = ()
    devices: tuple[str, ...] = ()  # host device nodes, for the injection "nodes"
    foreign_processes: int = 0
    nvlink_peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine and its GPUs. `driver` is the NVIDIA driver's version, empty where there is none.

    A machine whose memory or processors are 0, because nobody has read them yet, gets no server.
    """

    name: str
    gpus: tuple[GPU, ...] = ()
    driver: str = ""
    cuda: str = ""  # the newest CUDA that the driver runs, such as "12.8"
    memory_bytes: int = 0
    cpus: float = 0.0
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An image choice of the catalog.

    `min_driver` is empty and `architectures` is () for a variant that needs no GPU. Architectures are compute
    capabilities that the image holds code for, times ten (8.6 is 86).
    """

    name: str
    title: str
    description: str = ""
    torch: str = ""
    cuda: str = ""
    python: str = ""
    min_driver: str = ""
    architectures: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()  # () means every role
    image: str = ""  # the reference that the build tags; a server runs by the image's id
    default: bool = False
    on_demand: bool = False  # built only where it is named, and offered only where it is built
    use: str = ""  # "course", "research", or empty where it is for both
    compressed_mb: int = 0  # what a registry sends, in 10^6 bytes; 0 where it was not measured
    unpacked_mb: int = 0  # what it takes on the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The cgroup and ulimit numbers of one container."""

    memory_bytes: int
    cpus: float
    pids: int
    shm_bytes: int
    tmp_bytes: int
    tmp_inodes: int
    nofile: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entitlement:
    """What a role may ask for. `gpus` counts the GPUs of a person over all their servers."""

    role: str
    gpus: int
    modes: tuple[Mode, ...]
    memory_bytes: int  # the most one server may have
    default_memory_bytes: int
    cpus: float
    max_runtime_s: int
    idle_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who has signed in. `sub` never changes; `hub_name` may. `home` is a name below the homes root."""

    sub: str
    uid: int
    hub_name: str
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What somebody asks for.

    `gpus` is the number of whole GPUs in mode exclusive, 1 in the modes mig and shared (one instance, one share) and 0
    in mode none. The last three are wishes, empty where there is none: words of the GPU's name ("A100", "rtx 4090"),
    the least GPU memory of each (of the instance, of the share), and a MIG profile ("3g.40gb").
    """

    user: str
    server: str
    variant: Variant
    mode: Mode
    gpus: int
    limits: Limits
    entitlement: Entitlement
    model: str = ""
    gpu_memory_bytes: int = 0
    profile: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a running server holds; exactly what its container's labels say.

    `node` is the machine and `role` the role whose cap the GPUs count against; both are empty in leases that were
    written before there were such labels.
    """

    id: str
    hub: str
    kind: str  # server | grade | shell
    user: str
    server: str
    variant: str
    image: str  # the image's id
    gpus: tuple[str, ...]  # UUIDs, of GPUs or of MIG instances
    mode: Mode
    memory_bytes: int
    cpus: float
    granted: datetime
    expires: datetime
    node: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """What the operator has set for placement.

    Attributes
    ----------
    ranking
        Fill one machine before the next (binpack), or use the emptiest (spread).
    shares_per_gpu, shares_by_gpu
        How many servers share a GPU in mode shared, where 0 means that it is not shared: for every GPU, and for single
        GPUs by UUID instead.
    memory_overcommit, cpu_overcommit
        The servers of a machine may be promised so many times its memory and its processors.
    memory_reserve_bytes
        What is kept of the promised memory for the system itself.
    closed
        Names of machines, and UUIDs of GPUs or MIG instances, that are drained or cordoned: nothing new goes there.
    quarantined
        UUIDs that are not given out although no lease names them, because they were not left as they should be.
    role_gpus
        The most GPUs of a role over all its people; a role that is not named has no such cap. Shares and MIG instances
        count as one each.
    """

    ranking: Literal["binpack", "spread"] = "binpack"
    shares_per_gpu: int = 0
    shares_by_gpu: tuple[tuple[str, int], ...] = ()
    memory_overcommit: float = 1.0
    cpu_overcommit: float = 4.0  # processors are only slower when promised twice; memory kills
    memory_reserve_bytes: int = 0
    closed: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()
    role_gpus: tuple[tuple[str, int], ...] = ()

    def shares_of(self, uuid: str) -> int:
        """Into how many shares a GPU is divided; 0 where it is not shared."""
        return dict(self.shares_by_gpu).get(uuid, self.shares_per_gpu)

    @property
    def offers_shares(self) -> bool:
        """Whether any GPU may be shared, be it here or not."""
        return self.shares_per_gpu > 0 or any(shares > 0 for _, shares in self.shares_by_gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a claim goes: a node, the UUIDs granted there in UUID order, and the role that they count against."""

    node: str
    gpus: tuple[str, ...]
    role: str = ""


def lease_for(claim: Claim, placement: Placement, *, lease_id: str, hub: str, image: str, now: datetime) -> Lease:
    """Give the lease that a placement becomes; it ends at the latest when the claim's entitlement says."""
    return Lease(
        id=lease_id,
        hub=hub,
        kind="server",
        user=claim.user,
        server=claim.server,
        variant=claim.variant.name,
        image=image,
        gpus=placement.gpus,
        mode=claim.mode,
        memory_bytes=claim.limits.memory_bytes,
        cpus=claim.limits.cpus,
        granted=now,
        expires=now + timedelta(seconds=claim.entitlement.max_runtime_s),
        node=placement.node,
        role=placement.role,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a claim, a choice or a name was turned down: a code and the values its sentence is made of."""

    code: Code
    params: tuple[tuple[str, str | int | float], ...] = ()

    @classmethod
    def of(cls, code: Code, /, **params: str | int | float) -> "Refusal":
        """Make a refusal whose parameters are in name order, so that equal refusals compare equal."""
        return cls(code=code, params=tuple(sorted(params.items())))
