"""Containers that are made to look at something and removed at once: which image, and how they are found again."""

from collections.abc import Iterable
from typing import Any

from spawner.core.ledger import LABEL
from spawner.docker_api import EngineSaysGone

__all__ = ["first_built", "labels", "left_over"]


def labels(hub: str, kind: str) -> dict[str, str]:
    """Give the labels of such containers; they hold no lease, and `make stop` finds them by the hub."""
    return {LABEL + "project": "gpucampus", LABEL + "hub": hub, LABEL + "kind": kind}


def left_over(client: Any, wanted: dict[str, str]) -> list[dict[str, Any]]:  # noqa: ANN401 - docker-py has no types
    """List the containers with these labels that an earlier look left, or that another one is using."""
    filters = {"label": [f"{key}={text}" for key, text in wanted.items()]}
    return list(client.containers(all=True, filters=filters))


def first_built(client: Any, images: Iterable[str]) -> str:  # noqa: ANN401 - docker-py has no types
    """Find the first image that is here; one that pretends to a lease would make its containers pretend, too.

    EngineSaysGone where there is none.
    """
    for name in images:
        for row in client.images(name=name):
            if LABEL + "lease" not in (row.get("Labels") or {}):
                return str(row["Id"])
    raise EngineSaysGone("no image of the catalog is built")
