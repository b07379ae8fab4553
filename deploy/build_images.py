"""Build the images of images/catalog.toml: the base, and one per variant.

The engine's plain build API is used through docker-py, so that it works with every engine and needs no command-line
client, BuildKit or buildx. Each image carries a hash of all that it was made of; what is current is not built again.
Run as a program: `python -m deploy.build_images [VARIANT ...]`.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import docker

from deploy import outside, wheels
from deploy.steps import tell
from spawner.campus import CampusError
from spawner.core import catalog

__all__ = [
    "BuildError",
    "build",
    "build_base",
    "cache_folder",
    "connect",
    "current",
    "exists",
    "fetch",
    "main",
    "read_catalog",
]

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "images"
PROJECT = "gpucampus"
REGISTRY_ANSWERS_S = 5
ENGINE_TIMEOUT_S = 1800  # between two lines of a build; a step of it says nothing while it copies
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class BuildError(RuntimeError):
    """An image cannot be built; the text is for the operator."""


def cache_folder() -> Path:
    """Where wheels and the base's files are kept: GPUCAMPUS_CACHE, else below the state folder."""
    named = os.environ.get("GPUCAMPUS_CACHE")
    return Path(named) if named else Path(os.environ.get("GPUCAMPUS_STATE", ROOT / ".state")) / "cache"


def build(variant: str, *, docker_host: str | None = None, cache: Path | None = None) -> str:
    """Build a variant, and the base below it, where they are not current; return the image's id.

    Parameters
    ----------
    variant
        The variant's name in the catalog.
    docker_host
        The engine to build in; the one that DOCKER_HOST names, or this machine's own, where None.
    cache
        Where wheels are kept between builds; see cache_folder.
    """
    listed = read_catalog()
    chosen = listed.get(variant)
    if chosen is None:
        names = ", ".join(one.name for one in listed.variants)
        raise BuildError(f"{variant} is not a variant of images/catalog.toml: there are {names}.")
    cache = cache or cache_folder()
    client = connect(docker_host)
    base = build_base(client, listed.base, cache)
    lock = ROOT / listed.folder(variant) / "requirements.lock"
    recipe = _recipe(lock)
    inputs = _hash([*recipe.values()], base, variant)
    if made := _current(client, chosen.image, inputs):
        return made
    context = dict(recipe) | {"uv": Path(sys.executable).with_name("uv")}
    context |= {f"wheels/{wheel.name}": wheel for wheel in wheels.fetch(lock, cache / "wheels")}
    labels = _labels(variant, inputs)
    return _build(client, chosen.image, context, labels, base=base, cache=cache, network="none")


def exists(reference: str) -> bool:
    """Whether an image of this name is on the engine, current or not."""
    try:
        connect().images.get(reference)
    except docker.errors.ImageNotFound:
        return False
    return True


def fetch(variants: Iterable[str], *, cache: Path | None = None) -> None:
    """Bring all that the builds need from the network, so that they run without one afterwards."""
    cache = cache or cache_folder()
    listed = read_catalog()
    for variant in variants:
        wheels.fetch(ROOT / listed.folder(variant) / "requirements.lock", cache / "wheels")
    if not listed.base.registry_image:
        _debian_archive(listed.base.suite, cache)


def current(client: docker.DockerClient, variant: str) -> bool:
    """Whether `build` would find nothing to do for a variant of the catalog."""
    listed = read_catalog()
    chosen = listed.get(variant)
    base = _current(client, f"{listed.base.image}:{listed.base.suite}", _base_inputs(listed.base))
    if chosen is None or base is None:
        return False
    recipe = _recipe(ROOT / listed.folder(variant) / "requirements.lock")
    return _current(client, chosen.image, _hash([*recipe.values()], base, variant)) is not None


def build_base(client: docker.DockerClient, base: catalog.Base, cache: Path) -> str:
    """Build the base image where it is not current; return its id."""
    reference = f"{base.image}:{base.suite}"
    recipe = {path.name: path for path in sorted((IMAGES / "base").iterdir())}
    inputs = _base_inputs(base)
    if made := _current(client, reference, inputs):
        return made
    if base.registry_image and _registry_answers(base.registry_image):
        client.images.pull(base.registry_image)
        below, network = base.registry_image, None
    else:
        below, network = _import_debian(client, base, cache), "none"
    return _build(client, reference, recipe, _labels("base", inputs), base=below, cache=cache, network=network)


def read_catalog() -> catalog.Catalog:
    """Read images/catalog.toml."""
    return catalog.parse((IMAGES / "catalog.toml").read_text(encoding="utf-8"))


def connect(docker_host: str | None = None) -> docker.DockerClient:
    """Connect to an engine, as Docker's own client would choose it where none is named."""
    if docker_host:
        return docker.DockerClient(base_url=docker_host, timeout=ENGINE_TIMEOUT_S)
    return docker.from_env(timeout=ENGINE_TIMEOUT_S)


def _labels(variant: str, inputs: str) -> dict[str, str]:
    return {"gpucampus.project": PROJECT, "gpucampus.variant": variant, "gpucampus.inputs": inputs}


def _recipe(lock: Path) -> dict[str, Path]:
    """The files that a variant is made of, besides its wheels, which its lock names."""
    recipe = {path.name: path for path in sorted((IMAGES / "jupyter").iterdir()) if path.suffix != ".in"}
    return recipe | {"requirements.lock": lock}


def _base_inputs(base: catalog.Base) -> str:
    return _hash(sorted((IMAGES / "base").iterdir()), base.suite, base.registry_image)


def _hash(files: Iterable[Path], *texts: str) -> str:
    total = hashlib.sha256("\0".join(texts).encode())
    for file in files:
        total.update(f"\0{file.name}\0{file.stat().st_mode & 0o111:o}\0".encode() + file.read_bytes())
    return total.hexdigest()


def _current(client: docker.DockerClient, reference: str, inputs: str) -> str | None:
    """The id of the image of this name, if it was made of exactly these inputs."""
    try:
        image = client.images.get(reference)
    except docker.errors.ImageNotFound:
        return None
    return str(image.id) if image.labels.get("gpucampus.inputs") == inputs else None


def _registry_answers(reference: str) -> bool:
    """Whether the registry of the reference answers in time; 401 is an answer, too."""
    host, slash, _ = reference.partition("/")
    if not slash or ("." not in host and ":" not in host and host != "localhost"):
        host = "registry-1.docker.io"
    try:
        urllib.request.urlopen(f"https://{host}/v2/", timeout=REGISTRY_ANSWERS_S)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _import_debian(client: docker.DockerClient, base: catalog.Base, cache: Path) -> str:
    """Import the package list as mmdebstrap made it; return the image's id."""
    archive = _debian_archive(base.suite, cache)
    tell("handing it to the engine")
    repository, tag = f"{PROJECT}/debian", archive.stem.rpartition("-")[2]
    labels = [f"LABEL {key}={value}" for key, value in _labels("debian", tag).items()]
    client.api.import_image(src=str(archive), repository=repository, tag=tag, changes=[*labels, 'CMD ["/bin/sh"]'])
    return str(client.images.get(f"{repository}:{tag}").id)


def _debian_archive(suite: str, cache: Path) -> Path:
    """The root file system that mmdebstrap makes of the package list, made once for each list."""
    packages = _packages()
    name = hashlib.sha256("\0".join((suite, *packages)).encode()).hexdigest()[:12]
    archive = cache / f"debian-{suite}-{name}.tar"
    if not archive.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = archive.with_suffix(".partial.tar")
        _mmdebstrap(suite, packages, partial)
        partial.rename(archive)
    return archive


def _packages() -> tuple[str, ...]:
    lines = (IMAGES / "base/packages.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def _mmdebstrap(suite: str, packages: tuple[str, ...], target: Path) -> None:
    unwanted = ("doc/*", "man/*", "info/*", "locale/*")
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    command += ["--aptopt=APT::Install-Recommends false"]
    command += [f"--dpkgopt=path-exclude=/usr/share/{path}" for path in unwanted]
    command += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", f"--keyring={KEYRING}", suite, str(target)]
    mirror, said = outside.debian_mirror(), []
    if mirror.startswith("https:") and (bundle := os.environ.get("SSL_CERT_FILE")):
        # apt reads no variable for it; the image must not keep a path of this machine
        command += [f'--aptopt=Acquire::https::CAInfo "{bundle}"']
        command += ['--customize-hook=sed -i /CAInfo/d "$1"/etc/apt/apt.conf.d/99mmdebstrap']
    command += [f"deb {mirror}/debian {name} main" for name in (suite, f"{suite}-updates")]
    command += [f"deb {mirror}/debian-security {suite}-security main"]
    try:
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            for line in process.stderr or ():
                said.append(line)
                if line.startswith("I: "):
                    tell(line.removeprefix("I: ").strip().rstrip("."))
    except FileNotFoundError as error:
        raise BuildError("mmdebstrap is missing: `apt-get install mmdebstrap` brings it.") from error
    if process.returncode:
        raise BuildError(f"mmdebstrap could not make the base image from {mirror}:\n{_tail(''.join(said))}")


def _build(
    client: docker.DockerClient,
    reference: str,
    context: Mapping[str, Path],
    labels: Mapping[str, str],
    *,
    base: str,
    cache: Path,
    network: str | None,
) -> str:
    """Send the context to the engine's builder, tag what comes out, and return its id."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=cache) as archive:
        tell("sending files to the engine")
        _pack(context, archive)
        lines = client.api.build(
            fileobj=archive,
            custom_context=True,
            tag=reference,
            buildargs={"BASE_IMAGE": base} | ({} if network == "none" else _proxies()),
            labels=dict(labels),
            network_mode=network,
            rm=True,
            forcerm=True,
            decode=True,
        )
        log: list[str] = []
        for line in lines:
            log.append(line.get("stream", ""))
            if log[-1].startswith("Step "):
                tell(log[-1].partition(" : ")[0].lower())
            if "error" in line:
                raise BuildError(f"{reference} could not be built:\n{_tail(''.join(log))}\n{line['error']}")
    _remove_leftovers(client)
    return str(client.images.get(reference).id)


def _proxies() -> dict[str, str]:
    """The proxy for a build that fetches packages; the engine knows these names, and keeps none in the image."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _pack(context: Mapping[str, Path], archive: IO[bytes]) -> None:
    """Write the context as a tar that is the same for the same files, whoever owns them here."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, path in sorted(context.items()):
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o111 else 0o644
            with path.open("rb") as file:
                tar.addfile(info, file)
    archive.seek(0)


def _remove_leftovers(client: docker.DockerClient) -> None:
    """Remove images of ours that lost their name and that no container uses."""
    for image in client.images.list(filters={"label": f"gpucampus.project={PROJECT}", "dangling": True}):
        try:
            client.images.remove(str(image.id))
        except docker.errors.APIError as error:
            if error.status_code not in {404, 409}:  # in use, or gone with its parent
                raise


def _tail(text: str, lines: int = 20) -> str:
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()[-lines:])


def main(arguments: list[str] | None = None) -> int:
    """Build the variants named, or all of the catalog."""
    parser = argparse.ArgumentParser(description="Build the images of images/catalog.toml.")
    parser.add_argument("variants", nargs="*", metavar="VARIANT")
    parser.add_argument("--fetch", action="store_true", help="only bring what the builds need from the network")
    chosen = parser.parse_args(arguments)
    names = chosen.variants or [variant.name for variant in read_catalog().variants]
    for name in names:
        start = time.monotonic()
        try:
            outside.apply()
            what = "fetched"
            if chosen.fetch:
                fetch([name])
            else:
                what = build(name)
        except (BuildError, CampusError, wheels.WheelError) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name}: {what} ({time.monotonic() - start:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
