"""Whether the memory that servers are promised is there: by the rules, by the roles, and by what servers hold now."""

from collections.abc import Iterator, Sequence

from spawner.core import ledger
from spawner.core.limits import memory_to_promise
from spawner.core.model import Entitlement
from spawner.docker_api import EngineRefuses, EngineUnknown, list_containers_once
from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding
from spawner.messages import size

__all__ = ["check_memory", "judge_memory", "judge_roles"]


def check_memory(machine: Machine) -> Iterator[Finding]:
    """Compare promises with the machine, in numbers."""
    total = _total(machine)
    if not total:
        raise NotLookedAtError("the kernel does not show how much memory there is (/proc/meminfo)")
    rules = machine.set.placement_rules(closed=frozenset(), quarantined=frozenset())
    most = memory_to_promise(total, rules)
    yield judge_memory(total, most, _held(), overcommit=rules.memory_overcommit)
    yield from judge_roles([role.entitlement for role in machine.set.entitlement_roles()], most)


def judge_memory(total: int, most: int, held: int | None, *, overcommit: float) -> Finding:
    """Judge what servers may be promised, and what they hold: None where nobody knows."""
    check, said = "memory", "what they hold is unknown" if held is None else f"they hold {size(held)}"
    if held is not None and held > most:
        text = f"servers hold {size(held)} GiB of memory and may be promised {size(most)} together by the settings now"
        return warn(check, text, "gpucampus leases; no new server starts until some have ended")
    if most > total:
        text = (
            f"servers may be promised {size(most)} GiB together and this machine has {size(total)} "
            f"(placement.memory_overcommit = {overcommit:g}); {said}. Where they use it, programs are ended"
        )
        return warn(check, text, "placement.memory_overcommit = 1.0, unless you know that most memory stays unused")
    return ok(check, f"servers may be promised {size(most)} of {size(total)} GiB together; {said}")


def judge_roles(roles: Sequence[Entitlement], most: int) -> Iterator[Finding]:
    """Name the roles whose server is larger than everything that may be promised."""
    for role in roles:
        check = f"memory {role.role}"
        if role.default_memory_bytes > most:
            text = (
                f"a server of this role gets {size(role.default_memory_bytes)} GiB where nobody chooses less, and all"
            )
            remedy = f"make roles.{role.role}.default_memory smaller, or placement.memory_reserve"
            yield fail(check, f"{text} servers together may be promised {size(most)}: such a start is refused", remedy)
        elif role.memory_bytes > most:
            text = f"this role is offered {size(role.memory_bytes)} GiB for one server, and all servers together may be"
            yield warn(check, f"{text} promised {size(most)}", f"make roles.{role.role}.memory smaller")


def _total(machine: Machine) -> int:
    for line in machine.read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return 0


def _held() -> int | None:
    """The sum of the leases' limits; None where the engine does not answer."""
    try:
        book = ledger.rebuild(tuple(list_containers_once()))
    except (EngineUnknown, EngineRefuses):
        return None
    return sum(lease.memory_bytes for lease in book.leases)
