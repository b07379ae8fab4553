"""The settings file: TOML in, typed and validated values out. Nothing else reads it.

Every key is documented in deploy/settings.example.toml. A key that does not exist or a value that is not allowed raises
SettingsError, whose text is one line: which key, what was given, what is allowed.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from spawner.campus import Campus
from spawner.core.entitlements import Role
from spawner.core.limits import MIN_MEMORY_BYTES, ContainerDefaults
from spawner.core.model import Entitlement, Mode, PlacementRules

__all__ = ["Settings", "SettingsError", "load", "locate"]

ROOT = Path(__file__).resolve().parent.parent
_LONGEST_GIVEN = 80


class SettingsError(ValueError):
    """The settings cannot be used; the text is one line for the operator."""


def _size(value: object) -> int:
    """Bytes from 512M, 4G and the like, or from a plain number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        match = re.fullmatch(r"(\d+)([KMGT])i?B?", str(value))
        if match is None:
            raise ValueError('allowed is a size such as "512M" or "4G"')
        number = int(match[1]) << {"K": 10, "M": 20, "G": 30, "T": 40}[match[2]]
    if not 0 < number <= 1 << 50:
        raise ValueError('allowed is a size above 0, such as "512M" or "4G"')
    return number


def _startable(value: int) -> int:
    """Memory that a server starts with; with less, each start would be refused and nobody would know why."""
    if value < MIN_MEMORY_BYTES:
        raise ValueError(f'allowed is "{MIN_MEMORY_BYTES >> 20}M" or more, since no server starts with less')
    return value


def _duration(value: object) -> int:
    """Seconds from 30m, 8h, 3d."""
    match = re.fullmatch(r"(\d+)([smhd])", str(value))
    if match is None or int(match[1]) == 0:
        raise ValueError('allowed is a duration such as "30m", "8h" or "3d"')
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def _origin(value: str) -> str:
    """An http(s) origin without a path, as browsers see it."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ValueError("allowed is an address such as https://hub.example.org")
    return value.rstrip("/")


def _network(value: object) -> IPv4Network | IPv6Network:
    """A network of either kind; a number, which would be an address, is a mistake."""
    try:
        return ip_network(str(value))
    except ValueError as error:
        raise ValueError('allowed is a network such as "10.20.0.0/16" or "fd00:20::/32", without host bits') from error


def _proxy(value: str) -> str:
    """An http proxy without a password: every server is told it."""
    parts = urlsplit(value)
    if value and (parts.scheme != "http" or not parts.hostname or parts.username or parts.path not in ("", "/")):
        raise ValueError("allowed is an address such as http://proxy.example.org:3128, without a password")
    return value.rstrip("/")


def _mirror(value: str) -> str:
    """An http(s) address without a password, or nothing."""
    parts = urlsplit(value)
    if value and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
        raise ValueError("allowed is an address such as https://mirror.example.org/simple, without a password")
    return value.rstrip("/")


def _absolute(value: Path) -> Path:
    """Relative paths count from the repository, not from where a command was typed."""
    return value if value.is_absolute() else ROOT / value


Size = Annotated[int, BeforeValidator(_size)]
ServerMemory = Annotated[Size, AfterValidator(_startable)]
Duration = Annotated[int, BeforeValidator(_duration)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
Origin = Annotated[str, AfterValidator(_origin)]
Place = Annotated[Path, AfterValidator(_absolute)]
Proxy = Annotated[str, AfterValidator(_proxy)]
Mirror = Annotated[str, AfterValidator(_mirror)]
Port = Annotated[int, Field(ge=1, le=65535)]
Shares = Annotated[int, Field(ge=0, le=64)]
Label = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubSettings(_Section):
    """The hub itself."""

    name: Label = "gpucampus"
    public_url: Origin = "http://localhost:8000"
    hub_port: Port = 8081
    proxy_api_port: Port = 8001
    proxy_port: Port | None = None
    run_culler: bool = True
    language: Literal["en", "zh"] = "en"
    servers_per_person: Annotated[int, Field(ge=1, le=100)] = 3

    @property
    def listen_port(self) -> int:
        """Where the proxy listens on 127.0.0.1; behind a web server with TLS it is not the port that people type."""
        plain = urlsplit(self.public_url).scheme == "http"
        return self.proxy_port or ((urlsplit(self.public_url).port or 80) if plain else 8000)


class NetworkSettings(_Section):
    """The bridge that the containers are on."""

    name: Label = "gpucampus"
    bridge: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,14}$")] = "gpucampus0"
    subnet: IPv4Network = IPv4Network("172.30.0.0/20")
    denied: tuple[Network, ...] = ()

    @property
    def gateway(self) -> str:
        """The host's own address on the bridge: where containers reach the hub."""
        return str(next(self.subnet.hosts()))


class CampusSettings(_Section):
    """What stands between this machine and the internet."""

    http_proxy: Proxy = ""
    https_proxy: Proxy = ""
    no_proxy: tuple[Annotated[str, Field(pattern=r"^[0-9A-Za-z.:/*-]{1,253}$")], ...] = ()
    ca_file: Place | None = None
    pip_index: Mirror = ""
    apt_mirror: Mirror = ""
    npm_registry: Mirror = ""

    def values(self) -> Campus:
        """Give what the variables of programs and containers are made of."""
        return Campus(
            http_proxy=self.http_proxy,
            https_proxy=self.https_proxy,
            no_proxy=self.no_proxy,
            ca_file=self.ca_file,
            pip_index=self.pip_index,
            npm_registry=self.npm_registry,
        )


class SignInSettings(_Section):
    """The university's OpenID Connect provider."""

    issuer: Origin
    client_id: Annotated[str, Field(min_length=1)]
    client_secret_file: Place
    title: Annotated[str, Field(min_length=1, max_length=60)] = "University account"
    username_claim: Annotated[str, Field(min_length=1)] = "preferred_username"
    groups_claim: Annotated[str, Field(min_length=1)] = "groups"
    admin_groups: tuple[str, ...] = ()

    def client_secret(self) -> str:
        """Read the secret; SettingsError where its file cannot be read or is empty."""
        try:
            secret = self.client_secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"sign_in.client_secret_file = {self.client_secret_file}: {error}") from error
        if not secret:
            raise SettingsError(f"sign_in.client_secret_file = {self.client_secret_file}: the file is empty")
        return secret


class RoleSettings(_Section):
    """What the members of some groups may ask for."""

    groups: Annotated[tuple[str, ...], Field(min_length=1)]
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    modes: tuple[Mode, ...] = (Mode.NONE,)
    memory: ServerMemory  # no default: a container without a memory limit of somebody's choice must not exist
    default_memory: ServerMemory
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    max_runtime: Duration = 8 * 3600
    idle: Duration = 3600
    gpus_together: Annotated[int, Field(ge=0, le=100_000)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "RoleSettings":
        if self.default_memory > self.memory:
            raise ValueError("default_memory is larger than memory; allowed is at most memory")
        if self.gpus == 0 and any(mode is not Mode.NONE for mode in self.modes):
            raise ValueError('modes names GPU modes but gpus is 0; allowed is modes = ["none"]')
        return self


class HomeSettings(_Section):
    """Where homes are, and the range that uids are allotted from."""

    root: Place = ROOT / ".state" / "homes"
    uid_min: Annotated[int, Field(ge=1000, le=2_000_000_000)] = 200_000
    uid_max: Annotated[int, Field(ge=1000, le=2_000_000_000)] = 299_999

    @model_validator(mode="after")
    def _range(self) -> "HomeSettings":
        if self.uid_max < self.uid_min:
            raise ValueError("uid_max is below uid_min; allowed is uid_min or more")
        return self


class GPUSettings(_Section):
    """How GPUs are found and given to containers."""

    inventory: Literal["nvml", "none"] = "nvml"
    injection: Literal["nvidia", "cdi", "nodes"] = "nvidia"
    library: Place | None = None
    device_dir: Place = Path("/dev")
    files: dict[str, str] = {}
    idle_memory: Size = 1 << 30
    read_every: Duration = 15
    shares_per_gpu: Shares = 0
    shares_by_gpu: dict[Annotated[str, Field(pattern=r"^GPU-[0-9A-Za-z-]{1,60}$")], Shares] = {}
    share_grace: Duration = 60
    simulated: bool = False


class PlacementSettings(_Section):
    """How servers are spread over machines, and how much a machine may be promised."""

    ranking: Literal["binpack", "spread"] = "binpack"
    memory_overcommit: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    cpu_overcommit: Annotated[float, Field(ge=0.1, le=100)] = 4.0
    memory_reserve: Size = 1 << 30


class ContainerSettings(_Section):
    """Limits that every container gets, whatever its role."""

    pids: Annotated[int, Field(ge=64, le=100_000)] = 512
    shm: Size = 1 << 30
    tmp: Size = 1 << 30
    tmp_inodes: Annotated[int, Field(ge=1000, le=10_000_000)] = 100_000
    nofile: Annotated[int, Field(ge=1024, le=1_048_576)] = 65_536
    start_timeout: Duration = 120
    stop_timeout: Duration = 10


class ImageSettings(_Section):
    """Which images may be started."""

    verify: Literal["enforce", "warn", "off"] = "enforce"
    key: Place | None = None
    registry: Annotated[str, Field(pattern=r"^([0-9a-z.-]+(:\d+)?(/[a-z0-9._-]+)*)?$")] = ""


class RecordsSettings(_Section):
    """What is kept of the past."""

    keep_history: Duration = 365 * 86400


class Settings(_Section):
    """The whole file."""

    version: Literal[1]
    state: Place = ROOT / ".state"
    catalog: Place = ROOT / "images" / "catalog.toml"
    hub: HubSettings = HubSettings()
    network: NetworkSettings = NetworkSettings()
    campus: CampusSettings = CampusSettings()
    sign_in: SignInSettings
    roles: Annotated[dict[Label, RoleSettings], Field(min_length=1)]
    homes: HomeSettings = HomeSettings()
    gpus: GPUSettings = GPUSettings()
    placement: PlacementSettings = PlacementSettings()
    containers: ContainerSettings = ContainerSettings()
    images: ImageSettings = ImageSettings()
    records: RecordsSettings = RecordsSettings()
    config_dir: Place | None = None

    def entitlement_roles(self) -> tuple[Role, ...]:
        """The roles as the rules know them, in the order of the file."""
        return tuple(
            Role(
                name=name,
                groups=role.groups,
                entitlement=Entitlement(
                    role=name,
                    gpus=role.gpus,
                    modes=role.modes,
                    memory_bytes=role.memory,
                    default_memory_bytes=role.default_memory,
                    cpus=role.cpus,
                    max_runtime_s=role.max_runtime,
                    idle_s=role.idle,
                ),
            )
            for name, role in self.roles.items()
        )

    def allowed_groups(self) -> frozenset[str]:
        """Every group whose members may sign in: those of the roles, and the administrators'."""
        return frozenset(group for role in self.roles.values() for group in role.groups).union(
            self.sign_in.admin_groups
        )

    def placement_rules(self, *, closed: frozenset[str], quarantined: frozenset[str]) -> PlacementRules:
        """What the operator has set for placement, with what is closed and quarantined now."""
        part = self.placement
        return PlacementRules(
            ranking=part.ranking,
            shares_per_gpu=self.gpus.shares_per_gpu,
            shares_by_gpu=tuple(self.gpus.shares_by_gpu.items()),
            memory_overcommit=part.memory_overcommit,
            cpu_overcommit=part.cpu_overcommit,
            memory_reserve_bytes=part.memory_reserve,
            closed=closed,
            quarantined=quarantined,
            role_gpus=tuple(
                (name, role.gpus_together) for name, role in self.roles.items() if role.gpus_together is not None
            ),
        )

    def container_defaults(self) -> ContainerDefaults:
        """The limits that do not depend on a role."""
        part = self.containers
        return ContainerDefaults(
            pids=part.pids, shm_bytes=part.shm, tmp_bytes=part.tmp, tmp_inodes=part.tmp_inodes, nofile=part.nofile
        )


def locate() -> Path:
    """The settings file's path: GPUCAMPUS_SETTINGS, else ./settings.toml, else what `make run` wrote for the demo."""
    named = os.environ.get("GPUCAMPUS_SETTINGS")
    if named:
        return Path(named)
    own = ROOT / "settings.toml"
    return own if own.exists() else Path(os.environ.get("GPUCAMPUS_STATE", ROOT / ".state")) / "settings.toml"


def load(path: Path | None = None) -> Settings:
    """Read and validate the settings file; SettingsError says in one line what is wrong."""
    path = path or locate()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML ({error})") from error
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError(f"{path}: {_one_line(error)}") from error


def _one_line(error: ValidationError) -> str:
    """Say the first thing that is wrong: the key, what was given, what is allowed."""
    first = error.errors()[0]
    path = [part for part in first["loc"] if part != "[key]"]
    key = ".".join(str(part) for part in path) or "the file"
    if first["type"] == "extra_forbidden":
        return f"{key} is not a setting: allowed are {_keys_beside(path)}"
    if first["type"] == "missing":
        return f"{key} is missing"
    allowed = first["msg"].removeprefix("Value error, ").replace("Input should be ", "allowed is ")
    given = repr(first["input"])
    if isinstance(first["input"], dict) or len(given) > _LONGEST_GIVEN:
        return f"{key}: {allowed}"
    return f"{key} = {given}: {allowed}"


def _keys_beside(path: Sequence[str | int]) -> str:
    """The keys that the section has in which an unknown one was found."""
    section: type[BaseModel] = Settings
    for part in path[:-1]:
        field = section.model_fields.get(str(part))
        if field is None:
            continue  # a role's name
        kind = RoleSettings if part == "roles" else field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            section = kind
    return ", ".join(section.model_fields)
