"""What `gpucampus images` does, as a program: `python -m deploy.images COMMAND [VARIANT]`.

Progress goes to stderr, and one JSON object to stdout: `rows` (of a table, all texts), what the command made, and
`findings`. Exit 0 without findings, 1 with, 2 where the command was typed wrongly.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import docker
import requests

from deploy import build_images, image_audit, image_records, image_scan, image_sign, outside, wheels
from deploy.buildkit import BuildError
from deploy.debian_packages import PackageError
from deploy.image_recipe import lock_of, read_catalog
from deploy.image_tools import ImageProblem
from deploy.steps import ROOT, step
from spawner import settings as settings_file
from spawner.campus import CampusError
from spawner.core.catalog import CatalogError
from spawner.core.model import Variant
from spawner.core.trust import BookError, Outcome, digest_of, judge
from spawner.settings import ImageSettings, SettingsError
from spawner.trust import fingerprint

__all__ = ["COMMANDS", "main"]

Answer = dict[str, Any]
SMOKE_LIMIT_S = 600
_PERSON = 200_000
_TROUBLE = (
    ImageProblem,
    BuildError,
    PackageError,
    wheels.WheelError,
    CampusError,
    CatalogError,
    BookError,
    SettingsError,
    docker.errors.DockerException,
    requests.RequestException,
    OSError,
)


class _Place:
    """Where a command works: the engine, the hub's state folder, the settings' section of images."""

    def __init__(self, key: Path | None) -> None:
        self.state = image_records.hub_state()
        present = settings_file.locate().exists()
        self.settings = settings_file.load().images if present else ImageSettings()
        self.private_key = key

    @cached_property
    def client(self) -> docker.DockerClient:
        """The engine, asked only by commands that need one."""
        return build_images.connect()

    def key(self) -> Path:
        """The site's public key."""
        if self.settings.key is None:
            raise ImageProblem("there is no key to verify with: set images.key to the site's cosign.pub")
        return self.settings.key


def _list(place: _Place, _variant: Variant | None) -> Answer:
    book, key = image_records.read(place.state), place.settings.key
    mark = fingerprint(key.read_bytes()) if key is not None and key.exists() else ""
    rows = []
    for variant in read_catalog().variants:
        try:
            attrs = place.client.images.get(variant.image).attrs
        except docker.errors.ImageNotFound:
            rows.append({"variant": variant.name, "image": variant.image, "state": "not built"})
            continue
        against = judge(variant, attrs["Id"], attrs.get("RepoDigests") or (), book, mark)
        rows.append(
            {
                "variant": variant.name,
                "image": variant.image,
                "state": "recorded" if against is None else against.code.value.removeprefix("image-"),
                "id": attrs["Id"][7:19],
                "unpacked": f"{attrs['Size'] / 1e6:.0f} MB",
                "built": str(attrs["Created"])[:19],
                "papers": "yes" if image_audit.AUDITED in (attrs["Config"].get("Labels") or {}) else "no",
            }
        )
    findings = [f"{row['variant']}: {row['state']}" for row in rows if row["state"] not in {"recorded", "not built"}]
    return {"rows": rows, "findings": findings}


def _build(place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    with step(f"Image {chosen.name}") as note:
        image = note.text = build_images.build(chosen.name)
    labels = place.client.images.get(image).labels
    image_records.record(chosen.name, image, str(labels.get("gpucampus.inputs", "")), state=place.state)
    return {"rows": [{"variant": chosen.name, "image": chosen.image, "id": image}], "findings": []}


def _test(place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    with step(f"Smoke test of {chosen.name}"):
        container = place.client.containers.create(
            chosen.image,
            ["gpucampus-smoke"],
            # as a person has it: no root, and nothing to write to but home and /tmp; torch.compile loads what it makes
            user=f"{_PERSON}:{_PERSON}",
            read_only=True,
            tmpfs={"/tmp": "exec", "/home/person": f"exec,uid={_PERSON},gid={_PERSON}"},  # noqa: S108 - in the container
            environment={"HOME": "/home/person"},
            working_dir="/home/person",
            network_mode="none",
            shm_size="1g",
            init=True,
            labels={"gpucampus.project": "gpucampus"},
        )
        try:
            container.start()
            status = int(container.wait(timeout=SMOKE_LIMIT_S)["StatusCode"])
            said = container.logs().decode(errors="replace")
        finally:
            container.remove(force=True, v=True)
    print(said, file=sys.stderr)
    meaning = {0: "passed", 1: "GPU fault", 2: "image fault", 3: "no GPU given"}.get(status, f"ended with {status}")
    findings = [] if status == 0 else [f"the smoke test of {chosen.name}: {meaning}"]
    return {"rows": [{"variant": chosen.name, "result": meaning}], "output": said, "findings": findings}


def _lock(_place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    lock = lock_of(chosen.name)
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--upgrade", "--generate-hashes"]
    command += ["--python-version", chosen.python or "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    command += ["--custom-compile-command", "make lock", str(lock.with_suffix(".in").relative_to(ROOT))]
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS") or wheels.CPU_INDEX + "/torch/"
    command += ["--find-links", links] if chosen.torch and not chosen.cuda else []
    with step(f"Lock of {chosen.name}"):
        done = subprocess.run(
            [*command, "--output-file", str(lock.relative_to(ROOT))],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise ImageProblem(f"uv could not lock {chosen.name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    packages = len(wheels.parse_lock(lock.read_text(encoding="utf-8")))
    return {"rows": [{"variant": chosen.name, "lock": str(lock), "packages": str(packages)}], "findings": []}


def _sbom(place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    with step(f"Papers of {chosen.name}") as note:
        made = image_audit.make(place.client, chosen, place.state)
        note.text = made.folder
    cis = made.cis
    row = {"variant": chosen.name, "Python": str(made.python), "Debian": str(made.debian)}
    row["without licence"] = str(made.without_licence)
    if cis is not None:
        row["CIS level 1"] = ", ".join(f"{count} {name}" for name, count in cis.counts.items()) + f"; score {cis.score}"
    return {"rows": [row], "papers": asdict(made), "findings": []}


def _audit(place: _Place, variant: Variant | None) -> Answer:
    answer = _sbom(place, variant)
    with step("Papers into the image") as note:
        image = note.text = image_audit.bake(place.client, _needed(variant), place.state)
    return answer | {"image": image}


def _scan(place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    with step(f"Scan of {chosen.name}"):
        holes = image_scan.scan(place.client, chosen)
    findings = [f"{chosen.name}: {len(holes)} known hole(s); build it anew with newer packages"] if holes else []
    return {"rows": [asdict(hole) for hole in holes], "findings": findings}


def _push(place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    with step(f"Push of {chosen.name}"):
        reference = image_sign.push(place.client, chosen, place.settings.registry)
    return {"rows": [{"variant": chosen.name, "reference": reference}], "findings": []}


def _sign(place: _Place, variant: Variant | None) -> Answer:
    chosen = _needed(variant)
    if place.private_key is None:
        raise ImageProblem("name the site's private key: --key /path/to/cosign.key")
    reference = image_sign.pushed(place.client, chosen, place.settings.registry)
    sbom = image_audit.folder_of(place.state, chosen.name) / "sbom.json"
    with step(f"Signature of {chosen.name}"):
        image_sign.sign(reference, place.private_key)
        if sbom.exists():
            image_sign.attest(reference, place.private_key, sbom)
    findings = [] if sbom.exists() else [f"no SBOM is attested: `gpucampus images sbom {chosen.name}`, and sign again"]
    return {"rows": [{"variant": chosen.name, "reference": reference}], "findings": findings}


def _verify(place: _Place, variant: Variant | None) -> Answer:
    wanted = [variant] if variant else [one for one in read_catalog().variants if digest_of(one.image)]
    rows, findings = [], []
    for chosen in wanted:
        with step(f"Signature of {chosen.name}"):
            reference = image_sign.pushed(place.client, chosen, place.settings.registry)
            found = image_sign.verify(reference, place.key(), state=place.state)
        row = {"variant": chosen.name, "signature": found.outcome.value, "SBOM": "attested" if found.sbom else "none"}
        rows.append(row | {"reference": reference})
        if found.outcome is not Outcome.SIGNED:
            findings.append(f"{chosen.name} is {found.outcome.value} and no server is started from it")
    return {"rows": rows, "findings": findings}


COMMANDS: Mapping[str, Callable[[_Place, Variant | None], Answer]] = {
    "list": _list,
    "build": _build,
    "test": _test,
    "lock": _lock,
    "sbom": _sbom,
    "audit": _audit,
    "scan": _scan,
    "push": _push,
    "sign": _sign,
    "verify": _verify,
}


def _needed(variant: Variant | None) -> Variant:
    if variant is None:
        raise ImageProblem("name a variant: `gpucampus images list` shows them")
    return variant


def main(arguments: list[str] | None = None) -> int:
    """Do one command and print its answer."""
    parser = argparse.ArgumentParser(prog="python -m deploy.images")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("variant", nargs="?", default="")
    parser.add_argument("--key", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            outside.apply()
            listed = read_catalog()
            variant = listed.get(chosen.variant)
            if chosen.variant and variant is None:
                names = ", ".join(one.name for one in listed.variants)
                raise ImageProblem(f"{chosen.variant} is not a variant of the catalog: there are {names}")
            answer = COMMANDS[chosen.command](_Place(chosen.key), variant)
    except _TROUBLE as error:
        answer = {"rows": [], "findings": [str(error)]}
    print(json.dumps(answer))
    return 1 if answer["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
