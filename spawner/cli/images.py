"""The commands `gpucampus images ...`: a thin door to the checkout's own program, deploy/images.py.

The hub's package knows nothing of builds, registries and scanners; they run in a process of their own, whose progress
shows on the terminal and whose answer is one JSON object.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spawner.cli.show import AsJSON, app, end, fail, print_json, print_table
from spawner.settings import ROOT

__all__ = ["images_app"]

images_app = typer.Typer(no_args_is_help=True, help="The images that servers run from.")
app.add_typer(images_app, name="images")

OneVariant = Annotated[str, typer.Argument(metavar="VARIANT", help="A variant of the catalog.")]
AnyVariant = Annotated[str, typer.Argument(metavar="[VARIANT]", help="A variant; none for all of a registry.")]
Key = Annotated[Path, typer.Option("--key", help="The site's private key, cosign.key.")]


@images_app.command("list")
def images_list(*, as_json: AsJSON = False) -> None:
    """List the variants, whether each is built, and whether it is the recorded one."""
    _do("list", as_json=as_json)


@images_app.command("build")
def images_build(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """Build a variant where it is not current, and record which image it is."""
    _do("build", variant, as_json=as_json)


@images_app.command("test")
def images_test(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """Run the smoke test in a container of a variant, without a network."""
    _do("test", variant, as_json=as_json)


@images_app.command("lock")
def images_lock(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """Make a variant's hashed lock anew from its requirements.in."""
    _do("lock", variant, as_json=as_json)


@images_app.command("sbom")
def images_sbom(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """Make SBOM, CIS report and provenance of a variant's image, beside it in the state folder."""
    _do("sbom", variant, as_json=as_json)


@images_app.command("audit")
def images_audit(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """Make the same, and put them into the image as /audit."""
    _do("audit", variant, as_json=as_json)


@images_app.command("scan")
def images_scan(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """List known holes in a variant's packages; what nobody can tell is a finding, too."""
    _do("scan", variant, as_json=as_json)


@images_app.command("push")
def images_push(variant: OneVariant, *, as_json: AsJSON = False) -> None:
    """Send a variant's image to images.registry, and say its reference by digest."""
    _do("push", variant, as_json=as_json)


@images_app.command("sign")
def images_sign(variant: OneVariant, key: Key, *, as_json: AsJSON = False) -> None:
    """Sign the digest of a pushed image with the site's key, and attest its SBOM."""
    _do("sign", variant, "--key", str(key), as_json=as_json)


@images_app.command("verify")
def images_verify(variant: AnyVariant = "", *, as_json: AsJSON = False) -> None:
    """Verify signatures with images.key, and note what was found: starts go by that."""
    _do("verify", *filter(None, [variant]), as_json=as_json)


def _do(command: str, *arguments: str, as_json: bool) -> None:
    """Run the program; stderr and the terminal's input are its own."""
    done = subprocess.run(
        [sys.executable, "-m", "deploy.images", command, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        fail(f"the program for images ended with {done.returncode} and gave no answer", as_json=as_json)
    if as_json:
        print_json(answer)
    elif answer["rows"]:
        columns = list(dict.fromkeys(column for row in answer["rows"] for column in row))
        print_table(
            None, f"images {command}", columns, [[row.get(one, "-") for one in columns] for row in answer["rows"]]
        )
    end(answer["findings"])
