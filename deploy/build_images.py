"""Build the images of images/catalog.toml: the base, and one per variant.

Each image carries a hash of all that it was made of; what is current is not built again. The wheels are fetched before
and the build itself needs no network. Run as a program: `python -m deploy.build_images [VARIANT ...]`.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import docker

from deploy import buildkit, debian_base, image_records, outside, wheels
from deploy.buildkit import BuildError
from deploy.image_recipe import (
    IMAGES,
    RECIPE,
    ROOT,
    base_files,
    hashed,
    lock_of,
    make_context,
    read_catalog,
    recipe_files,
)
from spawner.campus import CampusError
from spawner.core import catalog
from spawner.settings import SettingsError

__all__ = ["build", "build_base", "cache_folder", "connect", "current", "exists", "fetch", "main"]

PROJECT = "gpucampus"
REGISTRY_ANSWERS_S = 5
ENGINE_TIMEOUT_S = 1800  # the import of a root file system says nothing while it copies


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
    base = build_base(client, listed.base, cache, docker_host)
    inputs = _inputs(variant, base)
    if made := _current(client, chosen.image, inputs):
        image_records.record(variant, made, inputs)
        return made
    wheels.fetch(lock_of(variant), cache / "wheels")
    before = buildkit.cached(client)
    _remove_old_contexts(cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix="context-") as folder:
        context = Path(folder)
        make_context(chosen, cache / "wheels", context)
        buildkit.build(
            context,
            RECIPE / "Dockerfile",
            chosen.image,
            arguments={
                "BASE_IMAGE": f"{listed.base.image}:{listed.base.suite}",
                "MIRROR": _mirror(),
                "VARIANT": variant,
            },
            labels=_labels(variant, inputs),
            network="none",
            docker_host=docker_host,
        )
    buildkit.forget_sources(client, before)
    _remove_leftovers(client)
    made = str(client.images.get(chosen.image).id)
    image_records.record(variant, made, inputs)
    return made


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
        wheels.fetch(lock_of(variant), cache / "wheels")
    if not listed.base.registry_image:
        debian_base.archive(listed.base.suite, cache)


def current(client: docker.DockerClient, variant: str) -> bool:
    """Whether `build` would find nothing to do for a variant of the catalog."""
    listed = read_catalog()
    chosen = listed.get(variant)
    base = _current(client, f"{listed.base.image}:{listed.base.suite}", _base_inputs(listed.base))
    if chosen is None or base is None:
        return False
    return _current(client, chosen.image, _inputs(variant, base)) is not None


def build_base(client: docker.DockerClient, base: catalog.Base, cache: Path, docker_host: str | None = None) -> str:
    """Build the base image where it is not current; return its id."""
    reference = f"{base.image}:{base.suite}"
    inputs = _base_inputs(base)
    if made := _current(client, reference, inputs):
        return made
    cache.mkdir(parents=True, exist_ok=True)
    labels = _labels("base", inputs)
    if base.registry_image and _registry_answers(base.registry_image):
        client.images.pull(base.registry_image)
        below, network, proxies = base.registry_image, None, _proxies()
    else:
        below, network, proxies = debian_base.bring(client, base, cache, labels), "none", {}
    buildkit.build(
        IMAGES / "base",
        IMAGES / "base/Dockerfile",
        reference,
        arguments={"BASE_IMAGE": below, **proxies},
        labels=labels,
        network=network,
        docker_host=docker_host,
    )
    _remove_leftovers(client)
    return str(client.images.get(reference).id)


def connect(docker_host: str | None = None) -> docker.DockerClient:
    """Connect to an engine, as Docker's own client would choose it where none is named."""
    if docker_host:
        return docker.DockerClient(base_url=docker_host, timeout=ENGINE_TIMEOUT_S)
    return docker.from_env(timeout=ENGINE_TIMEOUT_S)


def _labels(variant: str, inputs: str) -> dict[str, str]:
    return {"gpucampus.project": PROJECT, "gpucampus.variant": variant, "gpucampus.inputs": inputs}


def _mirror() -> str:
    """The mirror that people's pip and apt use inside, by a name that the image's `use-mirror` knows."""
    return os.environ.get("GPUCAMPUS_IMAGE_MIRROR") or "official"


def _inputs(variant: str, base: str) -> str:
    return hashed(recipe_files(variant), base, variant, _mirror())


def _base_inputs(base: catalog.Base) -> str:
    return hashed(base_files(), base.suite, base.registry_image)


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


def _proxies() -> dict[str, str]:
    """The proxy for a build that fetches packages; the engine knows these names, and keeps none in the image."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _remove_old_contexts(cache: Path) -> None:
    """Remove what builds that were killed have left; another build may be at work, so only what is a day old."""
    for folder in cache.glob("context-*"):
        if time.time() - folder.stat().st_mtime > 86_400:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(client: docker.DockerClient) -> None:
    """Remove images of ours that lost their name and that no container uses."""
    for image in client.images.list(filters={"label": f"gpucampus.project={PROJECT}", "dangling": True}):
        try:
            client.images.remove(str(image.id))
        except docker.errors.APIError as error:
            if error.status_code not in {404, 409}:  # in use, or gone with its parent
                raise


def main(arguments: list[str] | None = None) -> int:
    """Build the variants named, or all of the catalog."""
    parser = argparse.ArgumentParser(description="Build the images of images/catalog.toml.")
    parser.add_argument("variants", nargs="*", metavar="VARIANT")
    parser.add_argument("--fetch", action="store_true", help="only bring what the builds need from the network")
    chosen = parser.parse_args(arguments)
    names = chosen.variants or [variant.name for variant in read_catalog().usual]
    for name in names:
        start = time.monotonic()
        try:
            outside.apply()
            what = "fetched"
            if chosen.fetch:
                fetch([name])
            else:
                what = build(name)
        except (BuildError, CampusError, SettingsError, wheels.WheelError) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name}: {what} ({time.monotonic() - start:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
