"""`make install`: put the project on this machine as system services; done again, it updates what is installed.

    /opt/gpucampus                a copy of the checkout's tracked files, with packages of its own
    /etc/gpucampus                settings.toml, config.d, tls: written once, yours from then on
    /var/lib/gpucampus            databases, secrets, logs
    /etc/systemd/system           the units of hub, proxy and idle culler: written each time
    /etc/nginx/sites-available    TLS in front of the proxy: written once
    /usr/local/bin/gpucampus      the operator's command, with these settings

The hub is started when its settings are yours; until then the last lines say what is missing. Homes are never touched.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from deploy import engine, listeners, preflight, processes, programs
from deploy.steps import ROOT, Problem, call, exit_with, state_folder, step
from deploy.up import HUB
from spawner import settings as settings_file
from spawner.findings import Status
from spawner.settings import Settings, SettingsError

__all__ = ["UNITS", "Places", "copy_project", "main", "missing", "production_settings", "write_settings", "write_site"]

UNITS = ("gpucampus-proxy.service", "gpucampus-hub.service", "gpucampus-culler.service")
PACKAGES = ("nginx", "nftables", "mmdebstrap")
EXAMPLE_ISSUER = "https://sso.example.org"
_KEPT = (".venv", ".state", "deploy/node_modules")
# what the example's values become; everything else of it holds as it is
_PRODUCTION = (
    ('state = ".state"', 'state = "{state}"'),
    ('# config_dir = "/etc/gpucampus/config.d"', 'config_dir = "{etc}/config.d"'),
    ('public_url = "http://localhost:8000"', 'public_url = "https://hub.example.org"'),
    ("run_culler = true", "run_culler = false"),
    ('client_secret_file = "/etc/gpucampus/client_secret"', 'client_secret_file = "{etc}/client_secret"'),
    ('root = ".state/homes"', 'root = "/srv/homes"'),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where everything goes."""

    prefix: Path = Path("/opt/gpucampus")
    etc: Path = Path("/etc/gpucampus")
    state: Path = Path("/var/lib/gpucampus")
    units: Path = Path("/etc/systemd/system")
    nginx: Path = Path("/etc/nginx")
    command: Path = Path("/usr/local/bin/gpucampus")

    @property
    def settings(self) -> Path:
        """The settings file."""
        return self.etc / "settings.toml"


def main() -> int:
    """Do all steps, then say what is left to do."""
    places = Places()
    os.umask(0o022)  # proxy and culler are users of their own: a stricter umask of root's would hide their packages
    log = places.state / "log/setup.log"
    try:
        check()
        with step("Files") as note:
            note.text = str(places.prefix)
            copy_project(ROOT, places.prefix)
        bring_packages(places)
        with step("Settings") as note:
            note.text = write_settings(places)
        settings = read_settings(places)
        with step("Secrets"):
            make_secrets(settings)
        with step("Services") as note:
            write_units(places, settings)
            reload_units(log)
            write_command(places)
            note.text = ", ".join(name.removesuffix(".service") for name in UNITS)
        with step("Web server") as note:
            note.text = write_site(places, settings)
        with step("Settings check") as note:
            note.text = check_settings(places)
        left = list(missing(places, settings))
        if not left:
            check_ports(settings)
            start(log)
    except (Problem, SettingsError, OSError) as error:
        exit_with(error)
    print(farewell(places, settings, left))
    return 0


def check() -> None:
    """Refuse by name what would fail later."""
    if os.geteuid() != 0:
        raise Problem("make install needs root: it writes to /opt and /etc and starts services. Run it with sudo.")
    if not Path("/run/systemd/system").is_dir():
        raise Problem(
            "systemd does not run here, so there is nothing that would start the services. Use `make run`, or run "
            "`python -m deploy.programs hub`, `proxy` and `culler` under a supervisor of your own."
        )
    if processes.read(state_folder() / "run" / HUB) is not None:
        raise Problem("The hub of `make run` runs in this checkout and holds the ports: end it first with `make stop`.")


def copy_project(source: Path, prefix: Path) -> None:
    """Make the prefix hold the tracked files of a checkout and no other, but for its packages."""
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--recurse-submodules"], check=False, capture_output=True
    )
    if listed.returncode:
        said = listed.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise Problem(
            f"Git does not tell root which files of {source} to install ({said}): install from a git checkout; for one "
            f"that is another user's, run `git config --global --add safe.directory {source}` first."
        )
    files = {Path(name) for name in listed.stdout.decode().split("\0") if name}
    if not files:
        raise Problem(f"{source} has no tracked files: install from a git checkout.")
    prefix.mkdir(mode=0o755, parents=True, exist_ok=True)
    for old in _own_files(prefix):
        if old not in files:
            (prefix / old).unlink()
    for file in files:
        if (source / file).exists():  # one may be deleted and not committed yet
            _copy(source / file, prefix / file)


def _own_files(prefix: Path) -> Iterator[Path]:
    """The files below the prefix that a copy brought, relative to it."""
    for folder, folders, names in os.walk(prefix):
        here = Path(folder).relative_to(prefix)
        folders[:] = [name for name in folders if str(here / name) not in _KEPT]
        yield from (here / name for name in names)


def _copy(source: Path, target: Path) -> None:
    """Replace a file as a whole: what runs from the old one goes on."""
    target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = target.with_name(f".{target.name}.new")
    if source.is_symlink():
        new.unlink(missing_ok=True)
        new.symlink_to(source.readlink())
    else:
        shutil.copyfile(source, new)
        new.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    new.replace(target)


def bring_packages(places: Places) -> None:
    """Bring everything that runs from the prefix: Debian packages, Python and Node packages, engine, images."""
    env = os.environ | {"GPUCAMPUS_STATE": str(places.state), "GPUCAMPUS_SETTINGS": str(places.settings)}
    log = places.state / "log/setup.log"
    absent = [name for name in PACKAGES if not _installed(name)]
    if absent:
        with step("Debian packages") as note:
            engine.apt_install(absent, places.state)
            note.text = ", ".join(absent)
    with step("Docker Engine") as note:
        note.text = engine.ensure(places.state)
    python = places.prefix / ".venv/bin/python"
    with step("Python packages"):
        call([places.prefix / "deploy/run", "packages"], log=log, env=env, cwd=places.prefix)
    with step("Node packages"):
        call([python, "-m", "deploy.node_packages"], log=log, env=env, cwd=places.prefix)
    with step("Images"):
        call([python, "-m", "deploy.build_images"], log=log, env=env, cwd=places.prefix)


def _installed(package: str) -> bool:
    asked = ["dpkg-query", "--show", "--showformat", "${db:Status-Status}", package]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout == "installed"


def production_settings(example: str, places: Places) -> str:
    """Make an operator's first settings of the documented example."""
    for old, new in _PRODUCTION:
        if example.count(old) != 1:
            raise ValueError(f"the example of the settings has not just one {old!r}")
        example = example.replace(old, new.format(etc=places.etc, state=places.state))
    head, _, rest = example.partition("\n#\n")
    return (
        f"# Settings of this hub; see {places.prefix}/docs/howto/install.md. `gpucampus settings check` reads them.\n"
        + (f"#\n{rest}" if head.startswith("# Settings") else example)
    )


def write_settings(places: Places) -> str:
    """Write the settings once; returns whether they are new."""
    for folder in (places.etc, places.etc / "config.d", places.etc / "tls"):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    secret = places.etc / "client_secret"
    if not secret.exists():
        secret.touch(mode=0o600)
    if places.settings.exists():
        return f"{places.settings} stays as it is"
    example = (places.prefix / "deploy/settings.example.toml").read_text(encoding="utf-8")
    draft = places.settings.with_suffix(".new")
    draft.write_text(production_settings(example, places), encoding="utf-8")
    draft.chmod(0o644)  # secrets are in files of their own; proxy and culler read this as users of their own
    draft.replace(places.settings)
    return f"{places.settings} is new"


def read_settings(places: Places) -> Settings:
    """Read the settings that the services will read."""
    os.environ["GPUCAMPUS_SETTINGS"] = str(places.settings)
    return settings_file.load(places.settings)


def make_secrets(settings: Settings) -> None:
    """Make the secrets that systemd hands to proxy and culler: they must be there before the hub's first start."""
    settings.state.mkdir(parents=True, exist_ok=True)
    settings.state.chmod(0o700)  # JupyterHub makes its database readable for all
    for name in ("crypt_key", "proxy_token", "idle_culler_token"):
        programs.secret(settings.state, name)


def write_units(places: Places, settings: Settings) -> None:
    """Write the units; one that would stay the same is not touched, so that systemd has no reason to read it anew."""
    places.units.mkdir(parents=True, exist_ok=True)
    for name in UNITS:
        template = (places.prefix / "deploy/systemd" / name).read_text(encoding="utf-8")
        unit, text = places.units / name, _filled(template, places, STATE=settings.state)
        if not unit.exists() or unit.read_text(encoding="utf-8") != text:
            unit.write_text(text, encoding="utf-8")


def reload_units(log: Path) -> None:
    """Have systemd read the units where it must: each time may cost running containers their GPUs.

    With NVIDIA's runtime and the cgroup driver `systemd` they then say "Failed to initialize NVML"
    (nvidia-container-toolkit#48).
    """
    asked = ["systemctl", "show", "--property=NeedDaemonReload", "--value", *UNITS]
    if "yes" in subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split():
        call(["systemctl", "daemon-reload"], log=log)


def _filled(text: str, places: Places, **more: object) -> str:
    values = {"PREFIX": places.prefix, "SETTINGS": places.settings, "STATE": places.state, "ETC": places.etc, **more}
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def write_command(places: Places) -> None:
    """Put the operator's command on the path, with the settings of the services."""
    text = f"""#!/bin/sh
export GPUCAMPUS_SETTINGS="${{GPUCAMPUS_SETTINGS:-{places.settings}}}"
exec {places.prefix}/.venv/bin/gpucampus "$@"
"""
    places.command.parent.mkdir(parents=True, exist_ok=True)
    places.command.write_text(text, encoding="utf-8")
    places.command.chmod(0o755)


def write_site(places: Places, settings: Settings) -> str:
    """Write the web server's site once the settings name the hub; it is switched on when its certificate is there."""
    host = urlsplit(settings.hub.public_url).hostname or ""
    if not ready(settings):
        return "later, when the settings name the hub"
    site, on = places.nginx / "sites-available/gpucampus.conf", places.nginx / "sites-enabled/gpucampus.conf"
    if not site.exists():
        site.parent.mkdir(parents=True, exist_ok=True)
        template = (places.prefix / "deploy/nginx/gpucampus.conf").read_text(encoding="utf-8")
        site.write_text(_filled(template, places, HOST=host, PORT=settings.hub.listen_port), encoding="utf-8")
    if not on.exists() and (places.etc / "tls/fullchain.pem").exists():
        on.parent.mkdir(parents=True, exist_ok=True)
        on.symlink_to(site)
    return str(site)


def ready(settings: Settings) -> bool:
    """Whether the settings are the operator's and no longer the example's."""
    return settings.sign_in.issuer != EXAMPLE_ISSUER and not settings.hub.public_url.endswith("//hub.example.org")


def missing(places: Places, settings: Settings) -> Iterator[str]:
    """What is left to do before the hub can start, one sentence each."""
    if not ready(settings):
        yield f"Say in {places.settings} what your hub and your identity provider are: hub.public_url and [sign_in]."
    try:
        settings.sign_in.client_secret()
    except SettingsError:
        yield f"Put the client's secret of your identity provider into {settings.sign_in.client_secret_file}."
    if not (places.etc / "tls/fullchain.pem").exists():
        host = urlsplit(settings.hub.public_url).hostname
        yield f"Put a certificate for {host} and *.{host} into {places.etc}/tls: fullchain.pem and privkey.pem."
    if not settings.homes.root.is_dir():
        yield f"Mount or make the folder of the homes, {settings.homes.root}."


def check_settings(places: Places) -> str:
    """Ask the operator's command about the settings; what it says, or Problem with that."""
    asked = [str(places.command), "settings", "check"]
    said = subprocess.run(asked, check=False, capture_output=True, text=True, cwd="/")
    text = " ".join(f"{said.stdout} {said.stderr}".split())
    if said.returncode:
        raise Problem(f"The settings cannot be used, so nothing was started anew: {text}")
    return text


def check_ports(settings: Settings) -> None:
    """Refuse where something that is not ours listens where the services will: a hub of `make run`, say."""
    part = settings.hub
    wanted = {part.listen_port: "the proxy", part.proxy_api_port: "the proxy's API", part.hub_port: "the hub"}
    asked = ["systemctl", "show", "--property=MainPID", "--value", *UNITS]
    pids = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split()
    found = preflight.ports(wanted, [int(pid) for pid in pids if pid != "0"])
    taken = [finding.text for finding in found if finding.status is Status.FAIL]
    for port in (80, 443):
        others = [str(holder) for holder in listeners.holders(port) if holder.name != "nginx"]
        taken += [f"port {port} (the web server) is taken by {', '.join(others)}"] if others else []
    if taken:
        text = "; ".join(taken)
        raise Problem(
            f"{text[0].upper()}{text[1:]}: end that program (a hub of `make run`: `make stop` in its checkout), or "
            f"choose other ports in the section [hub] of the settings."
        )


def start(log: Path) -> None:
    """Start what does not run, and the hub anew; proxy and servers go on."""
    with step("Start") as note:
        call(["nginx", "-t"], log=log)
        for name in UNITS:
            # enabling makes systemd read all units, which is not for nothing: see reload_units
            if subprocess.run(["systemctl", "is-enabled", "--quiet", name], check=False).returncode:
                call(["systemctl", "enable", name], log=log)
        call(["systemctl", "start", UNITS[0]], log=log)
        call(["systemctl", "restart", *UNITS[1:]], log=log)
        call(["systemctl", "reload-or-restart", "nginx"], log=log)
        note.text = "the hub runs; journalctl -u gpucampus-hub tells how"


def farewell(places: Places, settings: Settings, left: Iterable[str]) -> str:
    """Say where the hub is, or what is left to do."""
    lines = [f"  - {line}" for line in left]
    if not lines:
        return f"\n  {settings.hub.public_url}\n"
    return "\n".join(
        ("\nLeft to do, then `make install` again:", *lines, f"  See {places.prefix}/docs/howto/install.md.")
    )


if __name__ == "__main__":
    sys.exit(main())
