"""The form on the spawn page: what a person may choose now, and why something cannot be chosen.

`spawn_view` gathers the choices from values alone; `render_form` turns them into HTML. The form decides nothing: what
comes back from it is validated again in core/options.py, since anybody can send anything.

The fields are `variant` (a name of the catalog), `gpus` ("none", "1", "2", ..., "mig:" and a profile, "shared") and
`memory` ("512M", "4G", ...).
JupyterHub puts the result into a `<form>` of its own page, unescaped; hence the environment here escapes everything.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spawner.core.catalog import allowed, runs_on
from spawner.core.model import GIB, Code, Entitlement, Lease, Mode, Node, PlacementRules, Refusal, Variant
from spawner.core.policy import gpus_held
from spawner.gpu_choices import GPUChoice, GPUTile, gpu_choices, gpu_tiles
from spawner.messages import Language, sentence

__all__ = [
    "MemoryChoice",
    "SpawnView",
    "VariantCard",
    "render_form",
    "render_refusal",
    "spawn_view",
]

PAGES = Path(__file__).resolve().parent / "pages"
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCard:
    """A variant as the form shows it; `refusal` says why it cannot be chosen."""

    variant: Variant
    refusal: Refusal | None
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChoice:
    """One step of the memory list; `usual` marks the role's default."""

    value: str
    memory_bytes: int
    usual: bool
    chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnView:
    """Everything the form shows.

    `free` and `total` count whole GPUs; `held` counts what the person's other servers hold, an instance and a share as
    one each.
    """

    variants: tuple[VariantCard, ...]
    gpu_choices: tuple[GPUChoice, ...]
    memory_choices: tuple[MemoryChoice, ...]
    tiles: tuple[GPUTile, ...]
    free: int
    total: int
    held: int
    entitlement: Entitlement
    node: Node
    notice: str

    @property
    def shares(self) -> str:
        """Into how many shares the shared GPUs are divided: "4", or "2–8" where they differ."""
        numbers = {tile.shares for tile in self.tiles if tile.shares and tile.whole} or {0}
        low, high = min(numbers), max(numbers)
        return str(low) if low == high else f"{low}–{high}"


def spawn_view(
    variants: Sequence[Variant],
    images: Mapping[str, str | Refusal],
    entitlement: Entitlement,
    node: Node,
    leases: Sequence[Lease],
    *,
    previous: Mapping[str, object] | None = None,
    user: str = "",
    withheld: Collection[str] = (),
    rules: PlacementRules = PlacementRules(),  # noqa: B008 - it is frozen
    notice: str = "",
) -> SpawnView:
    """Gather what the form offers.

    Parameters
    ----------
    variants
        The catalog, in its order. Left out are variants of other roles, and those on demand that are not built.
    images
        For each variant the id of its image here, or why no server can run from it.
    entitlement
        What the person's role may ask for.
    node
        The machine and its GPUs; whole ones that are withheld say in `unhealthy` why.
    leases
        Every lease on the engine.
    previous
        The last options of this server, to be chosen again; what is not offered any more is ignored.
    user
        The person's hub name, to tell their own leases from those of others.
    withheld
        UUIDs that nobody may be given although no lease names them.
    rules
        What the operator has set; here, into how many shares each GPU is divided.
    notice
        A sentence shown above the choices.
    """
    previous = previous or {}
    tiles = gpu_tiles(node, leases, user=user, withheld=withheld, rules=rules)
    held = gpus_held(user, leases)
    return SpawnView(
        variants=_variant_cards(variants, images, entitlement.role, node, previous),
        gpu_choices=gpu_choices(entitlement, tiles, rules, held, previous),
        memory_choices=_memory_choices(entitlement, previous),
        tiles=tiles,
        free=sum(tile.state == "free" for tile in tiles),
        total=sum(tile.whole for tile in tiles),
        held=held,
        entitlement=entitlement,
        node=node,
        notice=notice,
    )


def _variant_cards(
    variants: Sequence[Variant],
    images: Mapping[str, str | Refusal],
    role: str,
    node: Node,
    previous: Mapping[str, object],
) -> tuple[VariantCard, ...]:
    roles = role.split("+")  # a person with several roles has them joined in one entitlement
    offered = [variant for variant in variants if allowed(variant, roles) and not _left_out(variant, images)]
    refusals = {variant.name: _why_not(variant, images, node) for variant in offered}
    possible = [variant for variant in offered if refusals[variant.name] is None]
    wanted = [variant.name for variant in possible if variant.name == previous.get("variant")]
    usual = [variant.name for variant in possible if variant.default] or [variant.name for variant in possible]
    chosen = next(iter(wanted + usual), "")
    return tuple(
        VariantCard(variant=variant, refusal=refusals[variant.name], chosen=variant.name == chosen)
        for variant in offered
    )


def _left_out(variant: Variant, images: Mapping[str, str | Refusal]) -> bool:
    """Whether the site does without this variant: nobody should read of every one that could be built."""
    absent = _absent(variant)
    return variant.on_demand and images.get(variant.name, absent) == absent


def _absent(variant: Variant) -> Refusal:
    return Refusal.of(Code.VARIANT_NOT_BUILT, variant=variant.name)


def _why_not(variant: Variant, images: Mapping[str, str | Refusal], node: Node) -> Refusal | None:
    """A variant runs here if its image exists and, where it needs GPUs, at least one GPU of the node suits it."""
    image = images.get(variant.name, _absent(variant))
    if isinstance(image, Refusal):
        return image
    if not variant.min_driver and not variant.architectures:
        return None
    if not node.gpus:
        return Refusal.of(Code.NO_GPUS, asked=1, exist=0)
    misfits = [runs_on(variant, node.driver, gpu.compute_capability) for gpu in node.gpus]
    return None if None in misfits else misfits[0]


def _memory_choices(entitlement: Entitlement, previous: Mapping[str, object]) -> tuple[MemoryChoice, ...]:
    """Powers of two from 1 GiB up, with the role's default and maximum among them."""
    usual = entitlement.default_memory_bytes
    sizes = {usual, entitlement.memory_bytes}
    step = GIB
    while step < entitlement.memory_bytes:
        sizes.add(step)
        step *= 2
    values = {size: _size_value(size) for size in sorted(sizes)}
    wanted = str(previous.get("memory", ""))
    before = [size for size, value in values.items() if wanted in (value, str(size))]
    chosen = next(iter(before), usual)
    return tuple(
        MemoryChoice(value=value, memory_bytes=size, usual=size == usual, chosen=size == chosen)
        for size, value in values.items()
    )


def _size_value(size: int) -> str:
    """A size as the field carries it: whole GiB, else whole MiB (rounded down, so that it never exceeds a limit)."""
    return f"{size // GIB}G" if size % GIB == 0 else f"{size // MIB}M"


def _size_text(size: int) -> str:
    """A size to read: one decimal below 10 GiB, none above (a GPU of 79.65 GiB is called an 80 GiB one)."""
    if size >= GIB:
        return f"{size / GIB:.{0 if size >= 10 * GIB else 1}f}".removesuffix(".0") + " GiB"
    return f"{size // MIB} MiB"


@dataclass(frozen=True, slots=True)
class _Texts:
    """The form's sentences in one language."""

    texts: Mapping[str, str]

    def say(self, key: str, /, **values: object) -> str:
        return self.texts[key].format(**values)

    def count(self, stem: str, number: float) -> str:
        return self.say(f"{stem}_one" if number == 1 else f"{stem}_many", n=f"{number:g}")

    def choice(self, choice: GPUChoice) -> str:
        if choice.mode is Mode.EXCLUSIVE:
            return self.count("gpu", choice.count)
        if choice.mode is Mode.MIG:
            return self.say("mig_any" if not choice.profile else "mig_one", profile=choice.profile)
        return self.say("share" if choice.mode is Mode.SHARED else "gpu_none")

    def time(self, seconds: int) -> str:
        """A length of time in its largest whole unit, rounded down to minutes."""
        for unit, length in (("days", 86400), ("hours", 3600)):
            if seconds >= length and seconds % length == 0:
                return self.count(unit, seconds // length)
        return self.count("minutes", max(1, seconds // 60))

    def limits(self, entitlement: Entitlement) -> Iterator[str]:
        yield self.count("limits_cpus", entitlement.cpus)
        yield self.count("limits_gpus", entitlement.gpus) if entitlement.gpus else self.say("limits_gpus_none")
        yield self.say("limits_runtime", time=self.time(entitlement.max_runtime_s))
        yield self.say("limits_idle", time=self.time(entitlement.idle_s))
        yield self.say("limits_home")


@cache
def _texts(language: Language) -> _Texts:
    return _Texts(tomllib.loads((PAGES / "texts.toml").read_text(encoding="utf-8"))["form"][language])


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(PAGES / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render_form(view: SpawnView, language: Language) -> str:
    """Return the form's HTML, without a `<form>` around it, in the language "en" or "zh"."""
    return (
        _environment()
        .get_template("spawn_form.html")
        .render(
            view=view,
            language=language,
            t=_texts(language),
            size=_size_text,
            sentence=lambda refusal: sentence(refusal, language),
        )
    )


def render_refusal(refusal: Refusal, language: Language) -> str:
    """Return what stands in the form's place when there is nothing to choose, such as for a person without a role."""
    return (
        _environment().get_template("spawn_refusal.html").render(reason=sentence(refusal, language), language=language)
    )
