"""What a person asks for, out of whatever the REST API or the form sends.

What must hold: `parse_choice` answers a Choice or a Refusal for *every* value, however hostile, and never raises; a
Choice holds only the types it says (a bool is not a number here); nothing of the input is kept beside it. Whether the
person may have it is another question: `check_choice` asks it, and core/limits.py for the memory.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from spawner.core import catalog as catalogs
from spawner.core.catalog import Catalog
from spawner.core.model import Code, Entitlement, Mode, Refusal, Variant
from spawner.core.names import printable

__all__ = ["MAX_OPTIONS_BYTES", "Choice", "check_choice", "from_form", "parse_choice", "parse_size"]

MAX_OPTIONS_BYTES = 4096
MAX_GPUS = 1024  # well-typed, not allowed: the entitlement decides that
MAX_MEMORY_BYTES = 1 << 50

_KEYS = ("variant", "mode", "gpus", "memory", "profile", "model", "gpu_memory")
_ALLOWED_OBJECT = '{"variant": "cpu", "mode": "none", "gpus": 0, "memory": "4G"}'
_SIZE = re.compile(r"([1-9][0-9]{0,15})(?:([KMGT])i?B?)?")
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_FORM_NUMBER = re.compile(r"[0-9]{1,4}")
_FORM_MIG = re.compile(r"mig(?::(.*))?", re.DOTALL)
_PROFILE = re.compile(r"[0-9a-z][0-9a-z.+-]{0,23}")  # "3g.40gb", "1g.10gb+me"
_MODEL = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z ._+-]{0,38}[0-9A-Za-z])?")  # words of a GPU's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A person's choice. `memory_bytes` None means the role's default.

    The last three are wishes about the GPU, empty where there is none; see Claim.
    """

    variant: str
    mode: Mode
    gpus: int
    memory_bytes: int | None
    profile: str = ""
    model: str = ""
    gpu_memory_bytes: int = 0


def parse_choice(raw: object, *, default_variant: str) -> Choice | Refusal:
    """Turn the user options of the API or the form into a choice, or refuse them.

    Missing keys have defaults: the default variant, no GPU, the role's memory, no wish; and in the modes mig and shared
    one instance or one share, since there are never more. The param `allowed` of an OPTION_TYPE refusal is by example,
    so that it reads the same in every language.
    """
    refusal = _check_shape(raw)
    if refusal is not None or not isinstance(raw, dict):
        return refusal or _wrong_type("options", raw, _ALLOWED_OBJECT)
    mode = _mode(raw.get("mode", Mode.NONE.value))
    if mode is None:
        return _wrong_type("mode", raw["mode"], ", ".join(Mode))
    gpus = raw.get("gpus", 1 if mode in (Mode.MIG, Mode.SHARED) else 0)
    if refusal := _check_gpus(gpus, mode) or _check_sizes_and_texts(raw, mode):
        return refusal
    return Choice(
        variant=raw.get("variant", default_variant),
        mode=mode,
        gpus=gpus,
        memory_bytes=parse_size(raw.get("memory")),
        profile=raw.get("profile", ""),
        model=raw.get("model", ""),
        gpu_memory_bytes=parse_size(raw.get("gpu_memory")) or 0,
    )


def parse_size(value: object) -> int | None:
    """Bytes from "4G" and the like or from a whole number of bytes; None where it is neither or out of all bounds."""
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        number = int(match[1]) << _SHIFT[match[2] or ""]
    elif type(value) is int:
        number = value
    else:
        return None
    return number if 0 < number <= MAX_MEMORY_BYTES else None


def from_form(formdata: dict[str, list[str]]) -> dict[str, object]:
    """Turn the spawn form's fields into the raw options: shape only, `parse_choice` judges.

    The field `gpus` is "none", the number of whole GPUs, "shared", "mig" or "mig:" and a profile, and decides the mode;
    an empty `memory`, `model` or `gpu_memory` means the default. A field that the form does not have is kept, so that
    it is refused and not silently dropped. A field sent twice is kept as a list, which is refused for its type.
    """
    raw: dict[str, object] = {}
    for key, values in formdata.items():
        if key != "_xsrf":
            raw[key] = values[0] if len(values) == 1 else list(values)
    for key in ("memory", "model", "gpu_memory"):
        if raw.get(key) == "":
            del raw[key]
    gpus = raw.get("gpus")
    if gpus in ("none", "0"):
        raw["gpus"] = 0
        raw.setdefault("mode", Mode.NONE.value)
    elif isinstance(gpus, str) and _FORM_NUMBER.fullmatch(gpus):
        raw["gpus"] = int(gpus)
        raw.setdefault("mode", Mode.EXCLUSIVE.value)
    elif gpus == Mode.SHARED.value:
        raw["gpus"] = 1
        raw.setdefault("mode", Mode.SHARED.value)
    elif isinstance(gpus, str) and (match := _FORM_MIG.fullmatch(gpus)):
        raw["gpus"] = 1
        raw.setdefault("mode", Mode.MIG.value)
        if match[1] is not None:
            raw.setdefault("profile", match[1])
    return raw


def check_choice(
    choice: Choice, catalog: Catalog, entitlement: Entitlement, roles: Iterable[str], *, held: int = 0
) -> Variant | Refusal:
    """Give the chosen variant where the person may have what they chose, else say which rule refuses it.

    `held` is the number of GPUs that the person's servers hold now and is only said, not judged: the arbiter counts
    leases in the step that places.
    """
    variant = catalog.get(choice.variant)
    if variant is None:
        known = ", ".join(item.name for item in catalog.variants)
        return Refusal.of(Code.VARIANT_UNKNOWN, variant=printable(choice.variant), known=known)
    if not catalogs.allowed(variant, roles):
        return Refusal.of(Code.VARIANT_NOT_ALLOWED, variant=variant.name, role=entitlement.role)
    if choice.gpus > entitlement.gpus:
        return Refusal.of(Code.GPU_ENTITLEMENT, asked=choice.gpus, held=held, allowed=entitlement.gpus)
    if choice.mode not in entitlement.modes:
        allowed = ", ".join(entitlement.modes)
        return Refusal.of(Code.MODE_NOT_ALLOWED, mode=choice.mode.value, allowed=allowed, role=entitlement.role)
    return variant


def _check_shape(raw: object) -> Refusal | None:
    """Refuse what is not JSON, too much of it, or a key nobody knows.

    RecursionError: lists nested a thousand deep are a short text and still deadly.
    """
    try:
        size = len(json.dumps(raw))
    except (TypeError, ValueError, RecursionError):
        return Refusal.of(Code.OPTION_TYPE, option="options", given=type(raw).__name__, allowed=_ALLOWED_OBJECT)
    if size > MAX_OPTIONS_BYTES:
        return Refusal.of(Code.OPTIONS_TOO_LARGE, bytes=size, most=MAX_OPTIONS_BYTES)
    for key in raw if isinstance(raw, dict) else ():
        if key not in _KEYS:
            return Refusal.of(Code.OPTION_UNKNOWN, option=printable(str(key)), allowed=", ".join(_KEYS))
    return None


def _check_gpus(gpus: object, mode: Mode) -> Refusal | None:
    if type(gpus) is not int or not 0 <= gpus <= MAX_GPUS:  # bool is an int to isinstance
        return _wrong_type("gpus", gpus, f"0, 1, 2 ... {MAX_GPUS}")
    if (mode is Mode.NONE) != (gpus == 0):
        return _wrong_type("gpus", gpus, "none = 0, exclusive >= 1, mig = 1, shared = 1")
    if gpus > 1 and mode in (Mode.MIG, Mode.SHARED):
        return Refusal.of(Code.MIG_ONE if mode is Mode.MIG else Code.SHARED_ONE, asked=gpus, most=1)
    return None


def _check_sizes_and_texts(raw: dict[str, object], mode: Mode) -> Refusal | None:
    """Each value has its type, and a wish about the GPU a mode in which it means something."""
    if "variant" in raw and not isinstance(raw["variant"], str):
        return _wrong_type("variant", raw["variant"], '"cpu"')
    if "memory" in raw and parse_size(raw["memory"]) is None:
        return _wrong_type("memory", raw["memory"], '"512M", "4G"')
    if "profile" in raw and not (mode is Mode.MIG and _matches(_PROFILE, raw["profile"])):
        return _wrong_type("profile", raw["profile"], 'mode = "mig", "3g.40gb"')
    if "model" in raw and not (mode is not Mode.NONE and _matches(_MODEL, raw["model"])):
        return _wrong_type("model", raw["model"], 'gpus >= 1, "A100"')
    if "gpu_memory" in raw and (mode is Mode.NONE or parse_size(raw["gpu_memory"]) is None):
        return _wrong_type("gpu_memory", raw["gpu_memory"], 'gpus >= 1, "40G"')
    return None


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _mode(value: object) -> Mode | None:
    return next((mode for mode in Mode if isinstance(value, str) and mode.value == value), None)


def _wrong_type(option: str, given: object, allowed: str) -> Refusal:
    shown = printable(json.dumps(given, ensure_ascii=False))
    return Refusal.of(Code.OPTION_TYPE, option=option, given=shown, allowed=allowed)
