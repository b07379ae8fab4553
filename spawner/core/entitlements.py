"""Groups of the identity provider to what a person may ask for.

A person has every role one of whose groups they are in. With several roles the entitlement is the most generous one
field by field: the largest number of GPUs, of memory, of processors and of hours, and every mode that any of the roles
allows. So one more group never takes anything away, and the order of groups and of roles does not matter.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spawner.core.model import Code, Entitlement, Mode, Refusal
from spawner.core.names import printable

__all__ = ["Role", "entitlement_for", "roles_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A name of the settings file, the groups whose members have it, and what it allows."""

    name: str
    groups: tuple[str, ...]
    entitlement: Entitlement


def roles_for(groups: Iterable[str], roles: Sequence[Role]) -> tuple[str, ...]:
    """Names of the roles that these groups give, in the order of the settings file."""
    held = frozenset(groups)
    return tuple(role.name for role in roles if not held.isdisjoint(role.groups))


def entitlement_for(groups: Iterable[str], roles: Sequence[Role]) -> Entitlement | Refusal:
    """Merge the roles that these groups give; refuse who has none.

    The merged entitlement's `role` is the names in alphabetical order, joined by `+`.
    """
    held = frozenset(groups)
    names = roles_for(held, roles)
    parts = [role.entitlement for role in roles if role.name in names]
    if not parts:
        return Refusal.of(Code.ROLE_MISSING, groups=printable(", ".join(sorted(held)), 120))
    modes = {mode for part in parts for mode in part.modes}
    return Entitlement(
        role="+".join(sorted(names)),
        gpus=max(part.gpus for part in parts),
        modes=tuple(mode for mode in Mode if mode in modes),
        memory_bytes=max(part.memory_bytes for part in parts),
        default_memory_bytes=max(part.default_memory_bytes for part in parts),
        cpus=max(part.cpus for part in parts),
        max_runtime_s=max(part.max_runtime_s for part in parts),
        idle_s=max(part.idle_s for part in parts),
    )
