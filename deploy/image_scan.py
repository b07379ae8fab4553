"""Known holes in an image: its Python packages by pip-audit, its Debian packages by Debian's own security updates.

It fails closed: a service that does not answer, a package that was skipped and a list that could not be fetched are
findings, since pip-audit by itself ends well when it has skipped everything.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import docker

from deploy import image_recipe
from deploy.image_tools import ImageProblem, python_tool, said_by
from deploy.steps import tell
from spawner.core.model import Variant

__all__ = ["Hole", "debian_holes", "judge_python", "python_holes", "scan", "upgrades"]

LIMIT_S = 600
_UPGRADE = re.compile(r"^Inst (\S+) \[([^\]]*)\] \((\S+) ([^)]*)\)", re.MULTILINE)
# no root file system that can be written, so apt works in a folder of its own
_APT = (
    "set -e; mkdir -p /tmp/apt/lists/partial /tmp/apt/archives/partial; "
    'o="-o Dir::State::Lists=/tmp/apt/lists -o Dir::Cache=/tmp/apt -o APT::Sandbox::User=root"; '
    "apt-get -q $o -o APT::Update::Error-Mode=any update >&2; apt-get -q $o -s upgrade"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """One known hole: in which package, and what mends it (empty where nothing does yet)."""

    package: str
    version: str
    what: str
    fixed: str


def scan(client: docker.DockerClient, variant: Variant) -> tuple[Hole, ...]:
    """All known holes of a variant's image; ImageProblem where nobody can tell."""
    return (*python_holes(variant), *debian_holes(client, variant))


def python_holes(variant: Variant) -> tuple[Hole, ...]:
    """Ask PyPI's service about every package of the lock."""
    tell("asking about Python packages")
    lock = image_recipe.lock_of(variant.name)
    command = [str(python_tool("pip-audit")), "--strict", "--disable-pip", "--no-deps", "--format", "json"]
    command += ["--progress-spinner", "off", "--requirement", str(lock)]
    text = said_by(command, limit_s=LIMIT_S, good=(0, 1))
    try:
        answer = json.loads(text)
    except json.JSONDecodeError as error:
        raise ImageProblem(f"pip-audit could not judge {lock}: its service did not answer") from error
    return judge_python(answer)


def judge_python(answer: dict[str, Any]) -> tuple[Hole, ...]:
    """Read pip-audit's answer; ImageProblem where a package was skipped, or none was looked at."""
    packages = answer.get("dependencies", [])
    skipped = [str(one["name"]) for one in packages if "skip_reason" in one or "vulns" not in one]
    if skipped or not packages:
        names = ", ".join(skipped[:3]) or "all of them"
        raise ImageProblem(
            f"pip-audit skipped {len(skipped) or 'every'} package(s) ({names}): nothing is known of them"
        )
    return tuple(
        Hole(
            package=str(one["name"]),
            version=str(one["version"]),
            what=str(vulnerability["id"]),
            fixed=", ".join(vulnerability.get("fix_versions", [])),
        )
        for one in packages
        for vulnerability in one["vulns"]
    )


def debian_holes(client: docker.DockerClient, variant: Variant) -> tuple[Hole, ...]:
    """Ask apt in the image which packages Debian's security team has mended since."""
    tell("asking about Debian packages")
    try:
        said = client.containers.run(
            variant.image,
            ["sh", "-c", _APT],
            user="0:0",
            remove=True,
            labels={"gpucampus.project": "gpucampus"},
            tmpfs={"/tmp": ""},  # noqa: S108 - in the container
            read_only=True,
        )
    except docker.errors.ContainerError as error:
        words = error.stderr if isinstance(error.stderr, str) else (error.stderr or b"").decode(errors="replace")
        last = words.strip().splitlines() or ["it said nothing"]
        raise ImageProblem(f"apt in {variant.image} could not fetch Debian's lists: {last[-1]}") from error
    except docker.errors.ImageNotFound as error:
        raise ImageProblem(f"{variant.image} is not on this engine: `gpucampus images build {variant.name}`") from error
    return upgrades(said.decode(errors="replace"))


def upgrades(said: str) -> tuple[Hole, ...]:
    """Read apt's simulated upgrade: what comes from the security archive is a hole."""
    return tuple(
        Hole(package=name, version=old, what="Debian security update", fixed=new)
        for name, old, new, source in _UPGRADE.findall(said)
        if "Debian-Security" in source
    )
