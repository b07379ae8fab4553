"""The papers of an image: SBOM, CIS report, lock, what was trimmed, and where it is from.

An image cannot hold the report of itself. So the build writes into /audit what it knows (the lock, removed.txt); these
papers are made of the finished image, beside it in the state folder, and go in by a second step: one layer more that
holds /audit and nothing else. The SBOM and the report name the image below that layer.
"""

import json
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import docker

from deploy import buildkit
from deploy.build_images import cache_folder
from deploy.image_licences import with_licences
from deploy.image_records import record
from deploy.image_tools import ImageProblem, python_tool, rules, said_by
from deploy.steps import ROOT, tell
from spawner.core.model import Variant

__all__ = ["AUDITED", "CIS", "Papers", "bake", "cis_summary", "folder_of", "make", "merge", "provenance"]

AUDITED = "gpucampus.audited"  # the label of an image with its papers: the id of the image that they describe
PROFILE = "xccdf_org.ssgproject.content_profile_cis_level1_server"
SPEC = "1.6"
NOT_A_SERVER = (
    "A container is not a server: rules for boot loader, kernel modules, firewall, services and disks do not apply. "
    "They are counted as not applicable, not as passed."
)
_XCCDF = "{http://checklists.nist.gov/xccdf/1.2}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CIS:
    """What the benchmark says in numbers; `failed` are the rules' names."""

    profile: str
    rules: str
    score: float
    counts: Mapping[str, int]
    failed: tuple[str, ...]
    note: str = NOT_A_SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Papers:
    """What was made, and in which folder."""

    folder: str
    image: str
    python: int
    debian: int
    without_licence: int
    cis: CIS | None


def folder_of(state: Path, variant: str) -> Path:
    """Where the papers of a variant lie beside the image."""
    return state / "audit" / variant


def make(client: docker.DockerClient, variant: Variant, state: Path, *, cis: bool = True) -> Papers:
    """Make the papers of a variant's image as it is on the engine, in place of older ones."""
    try:
        image = client.images.get(variant.image)
    except docker.errors.ImageNotFound as error:
        raise ImageProblem(f"{variant.image} is not on this engine: `gpucampus images build {variant.name}`") from error
    target = folder_of(state, variant.name)
    new = target.with_name(f".{variant.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    with unpacked(client, str(image.id)) as root:
        python, debian = _python_parts(root, f"python{variant.python}"), _debian_parts(root)
        bom = merge(variant, str(image.id), python, debian)
        _write(new / "sbom.json", bom)
        found = _cis(root, new) if cis else None
        for name in ("requirements.lock", "removed.txt"):
            if (root / "audit" / name).is_file():
                shutil.copyfile(root / "audit" / name, new / name)
    if found is not None:
        _write(new / "cis-summary.json", asdict(found))
    _write(new / "provenance.json", provenance(variant, image.attrs, _revision(), datetime.now(UTC)))
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    parts = bom["components"]
    return Papers(
        folder=str(target),
        image=str(image.id),
        python=len(python),
        debian=len(debian),
        without_licence=sum("licenses" not in part for part in parts),
        cis=found,
    )


def bake(client: docker.DockerClient, variant: Variant, state: Path) -> str:
    """Put the papers into the image as a layer of their own, and record what it is now; return its id."""
    papers = folder_of(state, variant.name)
    said = json.loads((papers / "provenance.json").read_text(encoding="utf-8"))
    image = client.images.get(variant.image)
    if AUDITED in image.labels:
        raise ImageProblem(f"{variant.image} has its papers already; a new build gets new ones")
    if said["image"] != image.id:
        raise ImageProblem(f"the papers in {papers} are of another image than {variant.image}: make them anew")
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        context = Path(folder)
        shutil.copytree(papers, context / "audit")
        for path in (context / "audit").iterdir():
            path.chmod(0o644)
        (context / "audit").chmod(0o755)
        dockerfile = context / "Dockerfile"
        dockerfile.write_text("ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nCOPY audit/ /audit/\n", encoding="utf-8")
        buildkit.build(
            context,
            dockerfile,
            variant.image,
            arguments={"BASE_IMAGE": variant.image},
            labels={AUDITED: str(image.id)},
            network="none",
            docker_host=None,
        )
    made = str(client.images.get(variant.image).id)
    record(variant.name, made, str(image.labels.get("gpucampus.inputs", "")), state=state)
    return made


@contextmanager
def unpacked(client: docker.DockerClient, image: str) -> Iterator[Path]:
    """Give the files of an image in a folder; nothing of it is run."""
    tell("unpacking the image")
    cache_folder().mkdir(parents=True, exist_ok=True)
    container = client.containers.create(
        image, command=["true"], network_mode="none", labels={"gpucampus.project": "gpucampus"}
    )
    try:
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="root-") as folder:
            command = ["tar", "--extract", "--directory", folder, "--exclude=dev/*"]
            chunks = cast("Iterator[bytes]", container.export())
            with subprocess.Popen(command, stdin=subprocess.PIPE) as tar:
                if tar.stdin is not None:
                    tar.stdin.writelines(chunks)
            if tar.returncode:
                raise ImageProblem(f"{image} could not be unpacked")
            yield Path(folder)
    finally:
        container.remove(force=True, v=True)


def merge(
    variant: Variant, image: str, python: Iterable[Mapping[str, Any]], debian: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """One SBOM of both parts; a component that both name is in it once."""
    parts: dict[str, Mapping[str, Any]] = {}
    for part in (*python, *debian):
        name = str(part.get("purl") or part["bom-ref"])
        parts.setdefault(name, {**part, "bom-ref": name})
    subject = {"type": "container", "bom-ref": image, "name": variant.image, "version": image}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": subject},
        "components": [parts[name] for name in sorted(parts)],
    }


def provenance(
    variant: Variant, attrs: Mapping[str, Any], revision: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """Where an image is from: what it was made of, when, on which base, and with which revision of the recipes."""
    labels = attrs["Config"].get("Labels") or {}
    layers = attrs["RootFS"]["Layers"]
    return {
        "variant": variant.name,
        "reference": variant.image,
        "image": attrs["Id"],
        "built": attrs["Created"],
        "papers_made": now.isoformat(timespec="seconds"),
        "inputs": labels.get("gpucampus.inputs", ""),
        "base_layer": layers[0] if layers else "",
        "layers": layers,
        **revision,
    }


def cis_summary(results: Path) -> CIS:
    """Count what oscap found; ImageProblem where it judged nothing."""
    counts: Counter[str] = Counter()
    failed = []
    tree = ET.parse(results)  # noqa: S314 - our own oscap wrote it
    for rule in tree.iter(f"{_XCCDF}rule-result"):
        result = rule.findtext(f"{_XCCDF}result", "")
        if result != "notselected":
            counts[result] += 1
        if result in {"fail", "error", "unknown"}:
            failed.append(rule.attrib["idref"].removeprefix("xccdf_org.ssgproject.content_rule_"))
    if not counts["pass"]:
        raise ImageProblem("OpenSCAP judged nothing: the image has no package list that it can read")
    score = next((float(one.text or 0) for one in tree.iter(f"{_XCCDF}score")), 0.0)
    return CIS(
        profile=PROFILE.rpartition("profile_")[2],
        rules=tree.findtext(f"{_XCCDF}version", ""),
        score=round(score, 2),
        counts=dict(sorted(counts.items())),
        failed=tuple(sorted(failed)),
    )


def _cis(root: Path, target: Path) -> CIS:
    """Judge the unpacked image by the benchmark; 2 means that a rule failed, and is no failure of the look."""
    tell("judging by the CIS benchmark")
    if shutil.which("oscap") is None:
        raise ImageProblem("oscap is missing: `apt-get install openscap-scanner` brings it")
    content = rules()
    results = target / "results.xml"
    command = ["oscap", "xccdf", "eval", "--profile", PROFILE, "--results", str(results)]
    command += ["--report", str(target / "cis-report.html"), str(content)]
    env = {
        "OSCAP_PROBE_ROOT": str(root),
        "OSCAP_EVALUATION_TARGET": "container",
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    said_by(command, env=env, good=(0, 2))
    found = cis_summary(results)
    results.unlink()
    return found


def _python_parts(root: Path, python: str) -> list[dict[str, Any]]:
    """The packages of /opt/venv, with the licences that they declare."""
    packages = root / "opt/venv/lib" / python / "site-packages"
    if not packages.is_dir():
        return []
    tell("listing Python packages")
    with tempfile.TemporaryDirectory() as folder:
        # the tool asks an interpreter for its path; the image's own must not run here
        asked = Path(folder) / "python"
        asked.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps([str(packages)])}\nEND\n", encoding="utf-8")
        asked.chmod(0o755)
        command = [str(python_tool("cyclonedx-py")), "environment", str(asked), "--of", "JSON", "--sv", SPEC, "-o", "-"]
        return list(json.loads(said_by(command)).get("components", []))


def _debian_parts(root: Path) -> list[dict[str, Any]]:
    """Debian's packages; their licences are those that the copyright files name."""
    tell("listing Debian packages")
    command = [str(python_tool("debsbom")), "generate", "--root", str(root), "--sbom-type", "cdx", "--out", "-"]
    found = json.loads(said_by([*command, "--cdx-schema-version", SPEC]))
    return with_licences(root, found.get("components", []))


def _revision() -> dict[str, Any]:
    """The revision of the recipes, and whether there are changes beside it; empty outside a checkout."""
    try:
        revision = said_by(["git", "-C", str(ROOT), "rev-parse", "HEAD"], limit_s=30).strip()
        changes = said_by(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"], limit_s=30)
    except ImageProblem:
        return {"revision": "", "changed": None}
    return {"revision": revision, "changed": bool(changes.strip())}


def _write(path: Path, what: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(what, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
