"""The values that the rules work on.

Every value is frozen and made of frozen parts, so that a snapshot taken for one decision cannot change under it.
Sizes are bytes, processors are counts (1.5 is one and a half), times are timezone-aware UTC. A GPU is its UUID; an
index is only ever displayed.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

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
    "Refusal",
    "Variant",
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
    GPU_ENTITLEMENT = "gpu-entitlement"
    ROLE_MISSING = "role-missing"
    MODE_NOT_ALLOWED = "mode-not-allowed"
    MODE_NOT_OFFERED = "mode-not-offered"
    VARIANT_UNKNOWN = "variant-unknown"
    VARIANT_NOT_ALLOWED = "variant-not-allowed"
    VARIANT_NOT_BUILT = "variant-not-built"
    DRIVER_TOO_OLD = "driver-too-old"
    ARCHITECTURE = "architecture"
    GPU_UNHEALTHY = "gpu-unhealthy"
    NO_GPUS = "no-gpus"
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
    ENGINE_UNKNOWN = "engine-unknown"
    ENGINE_REFUSED = "engine-refused"
    GPU_DRIVER_MISMATCH = "gpu-driver-mismatch"
    GPU_GONE = "gpu-gone"
    GPU_RUNTIME_MISSING = "gpu-runtime-missing"
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
    """One machine and its GPUs. `driver` is the NVIDIA driver's version, empty where there is none."""

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
    """What somebody asks for. `gpus` is the number of whole GPUs and 0 in mode none."""

    user: str
    server: str
    variant: Variant
    mode: Mode
    gpus: int
    limits: Limits
    entitlement: Entitlement


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a running server holds; exactly what its container's labels say."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a claim goes: a node and the UUIDs granted there, in UUID order."""

    node: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a claim, a choice or a name was turned down: a code and the values its sentence is made of."""

    code: Code
    params: tuple[tuple[str, str | int | float], ...] = ()

    @classmethod
    def of(cls, code: Code, /, **params: str | int | float) -> "Refusal":
        """Make a refusal whose parameters are in name order, so that equal refusals compare equal."""
        return cls(code=code, params=tuple(sorted(params.items())))
