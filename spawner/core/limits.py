"""An entitlement and a choice to the cgroup numbers of one container.

What must hold: memory lies between `MIN_MEMORY_BYTES` and the entitlement's maximum; /dev/shm and /tmp are memory of
the same container, so neither is ever larger than its memory (a program would be killed instead of told "no space").
"""

from dataclasses import dataclass

from spawner.core.model import Code, Entitlement, Limits, PlacementRules, Refusal

__all__ = ["MIN_MEMORY_BYTES", "ContainerDefaults", "limits_for", "memory_to_promise"]

MIN_MEMORY_BYTES = 256 << 20  # JupyterLab and one kernel do not start with less


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDefaults:
    """The limits that every container gets, whatever its role."""

    pids: int
    shm_bytes: int
    tmp_bytes: int
    tmp_inodes: int
    nofile: int


def memory_to_promise(machine_bytes: int, rules: PlacementRules) -> int:
    """Give what the servers of a machine may be promised together, by the operator's rules."""
    return max(0, int(machine_bytes * rules.memory_overcommit) - rules.memory_reserve_bytes)


def limits_for(entitlement: Entitlement, memory_bytes: int | None, defaults: ContainerDefaults) -> Limits | Refusal:
    """Give the limits of one container; None asks for the role's default memory.

    A value that is not an int is a mistake of the caller (core/options.py has refused it before) and raises TypeError.
    """
    memory = entitlement.default_memory_bytes if memory_bytes is None else memory_bytes
    if type(memory) is not int:  # bool is an int to isinstance
        raise TypeError(f"memory_bytes is a {type(memory).__name__}, not an int")
    if not MIN_MEMORY_BYTES <= memory <= entitlement.memory_bytes:
        return Refusal.of(
            Code.MEMORY_RANGE,
            asked=memory,
            least=MIN_MEMORY_BYTES,
            most=entitlement.memory_bytes,
            role=entitlement.role,
        )
    return Limits(
        memory_bytes=memory,
        cpus=entitlement.cpus,
        pids=defaults.pids,
        shm_bytes=min(defaults.shm_bytes, memory),
        tmp_bytes=min(defaults.tmp_bytes, memory),
        tmp_inodes=defaults.tmp_inodes,
        nofile=defaults.nofile,
    )
