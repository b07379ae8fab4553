"""Push an image to the site's registry, sign its digest with the site's key, and verify such a signature.

Signed is the digest and never a tag, which can be moved. The key is the site's own: no public log is written or asked,
so that it works without the internet. What `verify` finds is noted in the book of records, and a start reads it there.
"""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import docker

from deploy.image_records import note_signature
from deploy.image_tools import ImageProblem, cosign, said_by
from deploy.steps import tell
from spawner.core.model import Variant
from spawner.core.trust import Outcome, digest_of

__all__ = ["Verified", "attest", "push", "pushed", "registry_of", "sign", "verify"]

LIMIT_S = 120
# the exit statuses of cosign 2
_OUTCOMES = {0: Outcome.SIGNED, 10: Outcome.UNSIGNED, 12: Outcome.WRONG_KEY}
_LOOPBACK = ("127.", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found of one digest."""

    reference: str
    outcome: Outcome
    sbom: bool  # whether an SBOM is attested with the same key


def push(client: docker.DockerClient, variant: Variant, registry: str) -> str:
    """Send a variant's image to the registry, and return its reference by digest."""
    if not registry:
        raise ImageProblem("there is no registry to push to: set images.registry in the settings")
    repository, tag = f"{registry}/{variant.name}", variant.image.rpartition(":")[2]
    if not client.images.get(variant.image).tag(repository, tag=tag):
        raise ImageProblem(f"{variant.image} cannot be named {repository}:{tag}")
    digest = ""
    for line in client.api.push(repository, tag=tag, stream=True, decode=True):
        if "error" in line:
            raise ImageProblem(f"{repository}:{tag} could not be pushed: {line['error']}")
        if progress := line.get("progress"):
            tell(f"{line.get('id', '')} {progress}")
        digest = (line.get("aux") or {}).get("Digest", digest)
    if not digest:
        raise ImageProblem(f"the registry did not say under which digest it keeps {repository}:{tag}")
    return f"{repository}@{digest}"


def pushed(client: docker.DockerClient, variant: Variant, registry: str) -> str:
    """The reference by digest of a variant: the catalog's own, else the one under which its image was pushed."""
    if digest_of(variant.image):
        return variant.image
    try:
        found = client.images.get(variant.image).attrs.get("RepoDigests") or []
    except docker.errors.ImageNotFound as error:
        raise ImageProblem(f"{variant.image} is not on this engine: `gpucampus images build {variant.name}`") from error
    ours = [str(one) for one in found if registry and str(one).startswith(f"{registry}/{variant.name}@")]
    if not ours:
        raise ImageProblem(f"{variant.image} has not been pushed: `gpucampus images push {variant.name}`")
    return ours[-1]


def sign(reference: str, key: Path) -> None:
    """Sign a digest with the site's private key; its password is asked for, or taken from COSIGN_PASSWORD."""
    _must_be_digest(reference)
    command = [str(cosign()), "sign", "--yes", "--key", str(key), "--tlog-upload=false", *registry_of(reference)]
    said_by([*command, reference], limit_s=LIMIT_S)


def attest(reference: str, key: Path, sbom: Path) -> None:
    """Attach an SBOM to a digest, signed with the same key."""
    _must_be_digest(reference)
    command = [str(cosign()), "attest", "--yes", "--key", str(key), "--tlog-upload=false", *registry_of(reference)]
    said_by([*command, "--type", "cyclonedx", "--predicate", str(sbom), reference], limit_s=LIMIT_S)


def verify(reference: str, key: Path, *, state: Path | None = None) -> Verified:
    """Look for the signature of a digest and note what was found; ImageProblem where the registry does not tell."""
    _must_be_digest(reference)
    if not key.exists():
        raise ImageProblem(f"{key} is not there: images.key names the site's public key")
    options = ["--key", str(key), "--private-infrastructure", *registry_of(reference)]
    status, said = _cosign(["verify", *options, reference])
    outcome = _OUTCOMES.get(status)
    if outcome is None:
        raise ImageProblem(f"whether {reference} is signed is not known, and nothing was noted: {said}")
    attested, _ = _cosign(["verify-attestation", "--type", "cyclonedx", *options, reference])
    note_signature(digest_of(reference), outcome, key=key, reference=reference, state=state)
    return Verified(reference=reference, outcome=outcome, sbom=attested == 0)


def registry_of(reference: str) -> list[str]:
    """Options for where an image is: without TLS on this machine alone."""
    return ["--allow-http-registry"] if reference.startswith(_LOOPBACK) else []


def _must_be_digest(reference: str) -> None:
    if not digest_of(reference):
        raise ImageProblem(f"{reference} is a tag, which can be moved: a signature is for a digest (@sha256:...)")


def _cosign(arguments: list[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [str(cosign()), *arguments],
            env=os.environ | dict(env or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return -1, f"the registry did not answer within {LIMIT_S} s"
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
