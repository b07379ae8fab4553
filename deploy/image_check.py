"""What the engine has of each variant, as JSON for `gpucampus upgrade --check`: `python -m deploy.image_check`.

Whether an image is current, the build itself decides. Its JupyterHub is read in the image, from a container that is
never started: a label could say anything.
"""

import io
import json
import re
import sys
import tarfile
from dataclasses import asdict, dataclass

import docker
from docker.errors import DockerException, ImageNotFound, NotFound

from deploy.build_images import connect, current
from deploy.image_recipe import read_catalog
from spawner.core.catalog import CatalogError
from spawner.core.model import Variant

__all__ = ["Image", "main"]

_LARGEST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One variant's image."""

    variant: str
    image: str
    built: bool
    current: bool
    jupyterhub: str  # empty where none is found


def main() -> int:
    """Print a list of what is there."""
    try:
        client = connect()
        looked = [(variant, _look(client, variant)) for variant in read_catalog().variants]
    except (DockerException, OSError, CatalogError) as error:
        print(f"the images are unknown: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    # a site may do without those on demand
    print(json.dumps([asdict(image) for variant, image in looked if image.built or not variant.on_demand]))
    return 0


def _look(client: docker.DockerClient, variant: Variant) -> Image:
    try:
        image = client.images.get(variant.image)
    except ImageNotFound:
        return Image(variant=variant.name, image=variant.image, built=False, current=False, jupyterhub="")
    return Image(
        variant=variant.name,
        image=variant.image,
        built=True,
        current=current(client, variant.name),
        jupyterhub=_jupyterhub(client, str(image.id), f"python{variant.python}"),
    )


def _jupyterhub(client: docker.DockerClient, image: str, python: str) -> str:
    """The version of JupyterHub inside an image."""
    container = client.containers.create(
        image, command=["true"], network_mode="none", labels={"gpucampus.project": "gpucampus"}
    )
    try:
        chunks, _ = container.get_archive(f"/opt/venv/lib/{python}/site-packages/jupyterhub/_version.py")
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            content = tar.extractfile(tar.next() or tarfile.TarInfo())
            text = content.read(_LARGEST).decode(errors="replace") if content else ""
    except (NotFound, tarfile.TarError, KeyError):
        return ""
    finally:
        container.remove(force=True, v=True)
    match = re.search(r"^version_info = \((\d+), (\d+), (\d+)", text, re.MULTILINE)
    return ".".join(match.groups()) if match else ""


if __name__ == "__main__":
    sys.exit(main())
