"""From a choice to a claim: what a person sent, judged by their role, the catalog and the limits.

The form offers what is allowed, and the API takes any JSON, so that everything is judged here whichever way it came.
"""

from collections.abc import Sequence
from typing import TypeVar

from spawner.arbiter import Refused
from spawner.core.entitlements import entitlement_for, roles_for
from spawner.core.limits import limits_for
from spawner.core.model import Claim, Refusal
from spawner.core.names import check_name
from spawner.core.options import check_choice, parse_choice
from spawner.runtime import Runtime

__all__ = ["checked", "claim_for"]

T = TypeVar("T")


async def claim_for(shared: Runtime, user: str, server: str, groups: Sequence[str], raw: object) -> tuple[Claim, str]:
    """Make the claim of a server, and find its image's id; Refused says what stands against it.

    EngineUnknown where the engine does not say whether there is an image.
    """
    if refusal := check_name(user) or shared.disks.refusal():
        raise Refused(refusal)
    entitlement = checked(entitlement_for(groups, shared.roles))
    choice = checked(parse_choice(raw, default_variant=await _default_variant(shared, raw)))
    variant = checked(check_choice(choice, shared.catalog, entitlement, roles_for(groups, shared.roles)))
    limits = checked(limits_for(entitlement, choice.memory_bytes, shared.settings.container_defaults()))
    image = checked(await shared.image_of(variant))
    if refusal := await shared.network.refusal():
        raise Refused(refusal)
    claim = Claim(
        user=user,
        server=server,
        variant=variant,
        mode=choice.mode,
        gpus=choice.gpus,
        limits=limits,
        entitlement=entitlement,
        model=choice.model,
        gpu_memory_bytes=choice.gpu_memory_bytes,
        profile=choice.profile,
    )
    return claim, image


async def _default_variant(shared: Runtime, raw: object) -> str:
    """The variant of somebody who has named none; the engine is asked only then."""
    named = isinstance(raw, dict) and "variant" in raw
    return shared.catalog.default_of(() if named else await shared.built_images()).name


def checked(value: T | Refusal) -> T:
    """Give a value that is no refusal."""
    if isinstance(value, Refusal):
        raise Refused(value)
    return value
