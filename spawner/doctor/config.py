"""The settings, and settings that no class knows: JupyterHub is silent about a trait that is misspelt."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from spawner.campus import CampusError, authority
from spawner.doctor.engine import read_catalog
from spawner.doctor.machine import Machine, NotLookedAtError, fail, ok, warn
from spawner.findings import Finding
from spawner.settings import ROOT

__all__ = ["check_settings", "files", "traits", "where"]

LIMIT_S = 60  # JupyterHub alone takes a busy machine 20 s to import
WIRING = ROOT / "jupyterhub_config.py"


def check_settings(machine: Machine) -> Iterator[Finding]:
    """Say whether the settings and the catalog that they name can be used."""
    if machine.settings is None:
        yield fail("settings", machine.trouble, f"correct it, then gpucampus settings check {machine.settings_path}")
        return
    yield ok("settings", f"{machine.settings_path} can be used")
    state, roles = machine.settings.state, machine.settings.roles
    try:
        listed = read_catalog(machine)
    except NotLookedAtError as error:
        yield fail("settings catalog", str(error), "correct it, then gpucampus settings check")
    else:
        strange = {role for variant in listed.variants for role in variant.roles if role not in roles}
        if strange:
            text = f"the catalog names roles that the settings do not have: {', '.join(sorted(strange))}"
            yield warn(
                "settings catalog", text, f"add [roles.{min(strange)}] to the settings, or take it out of the catalog"
            )
        else:
            yield ok("settings catalog", f"{len(listed.variants)} variants")
    if ca_file := machine.settings.campus.ca_file:
        try:
            authority(ca_file)
        except CampusError as error:
            yield fail(
                "settings campus", f"{error}; the hub does not start", f"openssl x509 -noout -subject -in {ca_file}"
            )
        else:
            yield ok("settings campus", f"{ca_file} holds certificates")
    secrets = state / "secrets"
    if secrets.is_dir() and secrets.stat().st_mode & 0o077:
        yield fail("settings secrets", f"{secrets} can be read by others than its owner", f"chmod -R go-rwx {secrets}")


def files(machine: Machine, wiring: Path = WIRING) -> tuple[Path, ...]:
    """The files of JupyterHub configuration, in the order in which the hub loads them."""
    folder = machine.set.config_dir
    return (wiring, *(sorted(folder.glob("*.py")) if folder else ()))


def traits(machine: Machine, wiring: Path = WIRING) -> Iterator[Finding]:
    """Load JupyterHub's configuration as the hub does, in a process of its own, and name what no class knows."""
    if not wiring.exists():
        raise NotLookedAtError(f"{wiring} is not there")
    command = [sys.executable, "-m", "spawner.doctor.config_child", str(wiring)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        text = f"the configuration did not load within {LIMIT_S} s"
        yield fail(
            "configuration", text, f"look for what waits in {', '.join(map(str, files(machine, wiring)[1:])) or wiring}"
        )
        return
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        yield fail("configuration", f"the configuration does not load: {last}", "correct the file that the line names")
        return
    unknown = json.loads(lines[-1])["unknown"]
    for row in unknown:
        name = ".".join(filter(None, (row["class"], row["trait"])))
        place = where(files(machine, wiring), row["class"], row["trait"])
        what = (
            "no class of JupyterHub or of this hub has that name"
            if not row["trait"]
            else "that class has no such trait"
        )
        near = f"; did you mean {row['near']}?" if row["near"] else ""
        yield fail(
            "configuration",
            f"c.{name} does nothing: {what}{near}",
            f"correct or remove it{f' in {place}' if place else ''}",
        )
    if not unknown:
        yield ok("configuration", "every setting is known to its class")


def where(paths: tuple[Path, ...], class_name: str, trait: str) -> str:
    """Find where a setting is written; empty where it is not written plainly. The last one holds."""
    pattern = re.compile(
        rf"\b{re.escape(class_name)}\s*\.\s*{re.escape(trait)}\b" if trait else rf"\b{re.escape(class_name)}\b"
    )
    for path in reversed(paths):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for number, line in enumerate(lines, start=1):
            if pattern.search(line):
                return f"{path} line {number}"
    return ""
