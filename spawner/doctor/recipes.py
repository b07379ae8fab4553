"""Whether the images are what their recipes in this checkout make, as the build itself decides it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spawner.doctor.engine import BUILD, needed_by
from spawner.doctor.machine import Machine, NotLookedAtError, ok, warn
from spawner.findings import Finding
from spawner.keeping.upgrade import look_at_images
from spawner.settings import ROOT

__all__ = ["LIMIT_S", "check_recipes", "judge_recipes"]

CHECK = "recipe"
LIMIT_S = 50.0  # a container is made of each image, never started


def check_recipes(machine: Machine) -> Iterator[Finding]:
    """Compare each image with its recipe; a host that only runs servers may have no recipes."""
    if not (ROOT / "deploy" / "image_check.py").is_file() or not (ROOT / "images").is_dir():
        yield ok(CHECK, "there are no recipes beside this program, so images are taken as they are")
        return
    needed_by(machine)
    found = look_at_images(LIMIT_S)
    if isinstance(found, str):
        raise NotLookedAtError(found)
    yield from judge_recipes(found)


def judge_recipes(images: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """Name the images that are older than their recipe; whether one is there at all is another check's business."""
    built = [image for image in images if image["built"]]
    old = [image for image in built if not image["current"]]
    for image in old:
        text = f"{image['image']} is older than its recipe in this checkout; servers that start from it work as before"
        yield warn(f"{CHECK} {image['variant']}", text, BUILD)
    if not old:
        yield ok(CHECK, f"images that are what their recipes make: {len(built)}")
