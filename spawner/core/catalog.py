"""The list of image variants (images/catalog.toml) and where a variant runs.

What must hold: every variant names a tag or a digest, never `latest`; exactly one is the default; a variant that needs
a GPU states both its lowest driver and the architectures that its image holds code for. A text that breaks a rule
raises CatalogError, whose message is one line.

Keys of the file: `version`, `[base]` (see Base) and one `[variants.<name>]` table each (see Variant, and `folder`, the
build's folder in the repository). An `image` that ends in `@sha256:...` is one of a registry, any other is built here.
"""

import re
import tomllib
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import cast

from spawner.core.model import Code, Refusal, Variant

__all__ = ["Base", "Catalog", "CatalogError", "allowed", "parse", "runs_on"]

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_FOLDER = re.compile(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*")
_DRIVER = re.compile(r"\d+(\.\d+)*")
_DIGEST = re.compile(r".+@sha256:[0-9a-f]{64}")
_VARIANT_TEXTS = ("title", "description", "folder", "image", "torch", "cuda", "python", "min_driver")
_FLAGS = ("default", "on_demand")
_VARIANT_KEYS = frozenset((*_VARIANT_TEXTS, *_FLAGS, "architectures", "roles", "use", "compressed_mb", "unpacked_mb"))
_USES = ("", "course", "research")
_MOST_MB = 1_000_000
_BASE_KEYS = frozenset(("image", "suite", "registry_image"))


class CatalogError(ValueError):
    """The catalog cannot be used; the text is one line for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """What all variants are built from. `registry_image` is empty or a reference by digest."""

    image: str
    suite: str
    registry_image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """The variants in the order of the file, their build folders, and the base."""

    base: Base
    variants: tuple[Variant, ...]
    folders: tuple[tuple[str, str], ...]  # (variant, folder): only the build needs them

    def get(self, name: str) -> Variant | None:
        """Find a variant by its name."""
        return next((variant for variant in self.variants if variant.name == name), None)

    def folder(self, name: str) -> str:
        """Name the folder that a variant is built from; KeyError where there is no such variant."""
        return dict(self.folders)[name]

    def default_of(self, built: Container[str]) -> Variant:
        """The variant that is chosen where a person has not: the catalog's default, or the first that is built here.

        Where none is built it is the catalog's default, so that a refusal names that one.
        """
        default = next(variant for variant in self.variants if variant.default)
        there = [variant for variant in self.variants if variant.name in built]
        return default if default in there or not there else there[0]

    @property
    def usual(self) -> tuple[Variant, ...]:
        """The variants that are built where none is named; the first of them is enough to begin with."""
        return tuple(variant for variant in self.variants if not variant.on_demand)


def parse(text: str) -> Catalog:
    """Read the catalog's text; CatalogError says in one line what is wrong."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CatalogError(f"catalog: not valid TOML ({error})") from error
    _only(data, frozenset(("version", "base", "variants")), "")
    if data.get("version") != 1 or data["version"] is True:
        raise CatalogError(f"version = {data.get('version')!r}: allowed is 1")
    base = _base(_table(data, "base"))
    tables = _table(data, "variants")
    if not tables:
        raise CatalogError("variants is empty: name at least one variant")
    variants = tuple(_variant(name, _table(tables, name, "variants.")) for name in tables)
    defaults = [variant.name for variant in variants if variant.default]
    if len(defaults) != 1:
        raise CatalogError(f"default is set by {', '.join(defaults) or 'no variant'}: exactly one variant has it")
    folders = tuple((name, _text(tables[name], "folder", f"variants.{name}.")) for name in tables)
    images = [variant.image for variant in variants]
    for image in images:
        if images.count(image) > 1:
            raise CatalogError(f"image = {image!r} is used by two variants: each has a tag of its own")
    if all(variant.on_demand for variant in variants):
        raise CatalogError("on_demand is set by every variant: at least one is built without being named")
    return Catalog(base=base, variants=variants, folders=folders)


def allowed(variant: Variant, roles: Iterable[str]) -> bool:
    """Whether a person with these roles may choose the variant; one that names no roles is for everybody."""
    return not variant.roles or not frozenset(variant.roles).isdisjoint(roles)


def runs_on(variant: Variant, driver: str, compute_capability: int) -> Refusal | None:
    """Refuse a GPU that the variant's code does not run on; None means that it does, or needs no GPU.

    Machine code runs on the same major architecture with an equal or higher minor: 8.6 code on 8.9, never on 9.0.
    There is no highest driver: newer drivers stay compatible.
    """
    if not variant.min_driver:
        return None
    if _parts(driver) < _parts(variant.min_driver):
        return Refusal.of(Code.DRIVER_TOO_OLD, variant=variant.name, driver=driver, needed=variant.min_driver)
    if any(code // 10 == compute_capability // 10 and code <= compute_capability for code in variant.architectures):
        return None
    built = ", ".join(_dotted(code) for code in sorted(variant.architectures))
    return Refusal.of(Code.ARCHITECTURE, variant=variant.name, capability=_dotted(compute_capability), built=built)


def _parts(version: str) -> tuple[int, ...]:
    """A driver's version as numbers, so that 525.60 is below 525.105; 535 and 535.0 are equal."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _dotted(capability: int) -> str:
    return f"{capability // 10}.{capability % 10}"


def _only(table: dict[str, object], keys: frozenset[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise CatalogError(f"{where}{key} is not a key of the catalog: allowed are {', '.join(sorted(keys))}")


def _table(parent: dict[str, object], key: str, where: str = "") -> dict[str, object]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise CatalogError(f"{where}{key} is missing: it is a table")
    return cast("dict[str, object]", value)


def _text(table: object, key: str, where: str, *, required: bool = True) -> str:
    value = cast("dict[str, object]", table).get(key, None if required else "")
    if value is None or (required and value == ""):
        raise CatalogError(f"{where}{key} is missing")
    if not isinstance(value, str) or "\n" in value:
        raise CatalogError(f"{where}{key} = {value!r}: allowed is a text of one line")
    return value


def _base(table: dict[str, object]) -> Base:
    _only(table, _BASE_KEYS, "base.")
    registry_image = _text(table, "registry_image", "base.", required=False)
    if registry_image and not _DIGEST.fullmatch(registry_image):
        raise CatalogError(f"base.registry_image = {registry_image!r}: allowed is a reference by digest (@sha256:...)")
    return Base(
        image=_text(table, "image", "base."), suite=_text(table, "suite", "base."), registry_image=registry_image
    )


def _pinned(image: str, where: str) -> None:
    """An image reference has a tag that says what it is, or a digest. A colon before a slash is a registry's port."""
    if _DIGEST.fullmatch(image):
        return
    tag = image.rpartition("/")[2].partition(":")[2]
    if tag in ("", "latest"):
        raise CatalogError(f"{where}image = {image!r}: allowed is a reference with a tag other than latest")


def _variant(name: str, table: dict[str, object]) -> Variant:
    where = f"variants.{name}."
    if not _NAME.fullmatch(name):
        raise CatalogError(f"variants.{name!r}: allowed are names of a-z, 0-9 and - that begin with a letter")
    _only(table, _VARIANT_KEYS, where)
    if not _FOLDER.fullmatch(_text(table, "folder", where)):
        raise CatalogError(f"{where}folder = {table['folder']!r}: allowed is a folder inside the repository")
    image = _text(table, "image", where)
    _pinned(image, where)
    min_driver = _text(table, "min_driver", where, required=False)
    if min_driver and not _DRIVER.fullmatch(min_driver):
        raise CatalogError(f'{where}min_driver = {min_driver!r}: allowed is a version such as "525.60.13"')
    architectures = _architectures(table.get("architectures", []), where)
    if bool(min_driver) != bool(architectures):
        raise CatalogError(f"{where}min_driver and {where}architectures go together: state both or neither")
    texts = {key: _text(table, key, where, required=False) for key in ("description", "torch", "cuda", "python")}
    return Variant(
        name=name,
        title=_text(table, "title", where),
        min_driver=min_driver,
        architectures=architectures,
        roles=_roles(table.get("roles", []), where),
        image=image,
        default=_flag(table, "default", where),
        on_demand=_flag(table, "on_demand", where),
        use=_use(table.get("use", ""), where),
        compressed_mb=_megabytes(table, "compressed_mb", where),
        unpacked_mb=_megabytes(table, "unpacked_mb", where),
        **texts,
    )


def _flag(table: dict[str, object], key: str, where: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise CatalogError(f"{where}{key} = {value!r}: allowed is true or false")
    return value


def _architectures(value: object, where: str) -> tuple[int, ...]:
    """Compute capabilities times ten; written as in the wheel's own list, such as 86 or 120."""
    if isinstance(value, list) and all(type(item) is int and 30 <= item < 1000 for item in value):
        return tuple(sorted(set(value)))
    raise CatalogError(f"{where}architectures = {value!r}: allowed is a list of whole numbers such as [80, 86, 90]")


def _use(value: object, where: str) -> str:
    if value not in _USES:
        raise CatalogError(f'{where}use = {value!r}: allowed is "course" or "research"')
    return str(value)


def _megabytes(table: dict[str, object], key: str, where: str) -> int:
    value = table.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_MB:
        raise CatalogError(f"{where}{key} = {value!r}: allowed is a whole number of megabytes")
    return value


def _roles(value: object, where: str) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) and _NAME.fullmatch(item) for item in value):
        return tuple(value)
    raise CatalogError(f'{where}roles = {value!r}: allowed is a list of role names such as ["researcher"]')
