"""`make run`: bring what is missing, start the proxy and the sign-in, and run the hub in the foreground.

Each step looks first whether its work is done, so the command can be repeated, and a run that broke off goes on. Proxy,
sign-in and servers are no children of the hub: Ctrl-C ends the hub alone, and the next run finds them working.
"""

import fcntl
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from deploy import (
    build_images,
    buildkit,
    debian_base,
    engine,
    image_recipe,
    node_packages,
    outside,
    preflight,
    processes,
    programs,
    wheels,
)
from deploy.demo.setup import Demo, DemoError, Ports, accounts_table
from deploy.demo.setup import prepare as prepare_demo
from deploy.processes import Program
from deploy.steps import ROOT, Problem, exit_with, state_folder, step
from spawner import routes
from spawner import settings as settings_file
from spawner.campus import CampusError
from spawner.findings import Finding, Status
from spawner.settings import Settings, SettingsError

__all__ = ["HUB", "PROXY", "SIGN_IN", "main"]

HUB, PROXY, SIGN_IN = "hub.pid", "proxy.pid", "sign-in.pid"
READY_S = 120


def main() -> int:
    """Do all steps, then wait for the hub to end; its exit status is ours."""
    # a shell that starts us in the background ignores SIGINT, and so would the hub's own services, which it ends by it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    state = state_folder()
    os.environ["GPUCAMPUS_STATE"] = str(state)
    try:
        outside.apply()
        with _only_one(state):
            plan = make_plan(state)
            look(state, plan)
            prepare(state, plan)
            settings, demo = bring_settings(state)
            network = settings.network
            if said := routes.obstacle(network.subnet, network.bridge, network.denied):
                raise Problem(f"{said[0].upper()}{said[1:]}.")
            if demo is not None:
                with step("Sign-in") as note:
                    note.text = start_sign_in(state, demo)
            with step("Proxy") as note:
                note.text = start_proxy(state, settings)
            hub = start_hub(state, settings)
    except (Problem, CampusError, DemoError, SettingsError, buildkit.BuildError, wheels.WheelError) as error:
        exit_with(error)
    if hub is None:
        welcome(settings, demo)
        print("  The hub has been running already. `make stop` ends it.\n")
        return 0
    pass_signals_on(hub)
    welcome(settings, demo)
    print(f"  Ctrl-C ends the hub, not the servers. Its log: {state / 'log/hub.log'}\n", flush=True)
    return wait_for(hub, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What this run is about to start, as far as it must be known before anything is changed."""

    hub: str
    network: str
    ports: dict[int, str]


def make_plan(state: Path) -> Plan:
    """Read the operator's settings; where there are none, the demo's names and ports."""
    if is_demo(state):
        demo = Ports.from_environment()
        used = {demo.public: "the proxy", demo.proxy_api: "the proxy's API", demo.provider: "the sign-in"}
        return Plan(hub=demo.name, network=demo.name, ports=used | {demo.hub: "the hub"})
    settings = settings_file.load()
    hub = settings.hub
    used = {hub.listen_port: "the proxy", hub.proxy_api_port: "the proxy's API"}
    return Plan(hub=hub.name, network=settings.network.name, ports=used | {hub.hub_port: "the hub"})


def is_demo(state: Path) -> bool:
    """Whether the demo's settings hold: they are in the state folder, and nobody has made them their own."""
    file = settings_file.locate().resolve()
    if file != state / "settings.toml":
        return False
    return not file.exists() or file.read_text(encoding="utf-8").startswith(outside.DEMO_HEADER)


def look(state: Path, plan: Plan) -> None:
    """Refuse by name what would fail later, and take the state folder for this hub."""
    running = [processes.read(state / "run" / name) for name in (HUB, PROXY, SIGN_IN)]
    ours = [program.pid for program in running if program is not None]
    _heed([preflight.belongs(state, ROOT, plan.hub), *preflight.ports(plan.ports, ours)])
    preflight.claim(state, ROOT, plan.hub)


def _heed(findings: list[Finding]) -> None:
    """Print the notes; Problem where something forbids to go on."""
    if text := preflight.tell(finding for finding in findings if finding.status is Status.WARN):
        print(f"  {text}")
    if text := preflight.tell(finding for finding in findings if finding.status is Status.FAIL):
        raise Problem(text)


def prepare(state: Path, plan: Plan) -> None:
    """Bring engine, Node packages and images."""
    if engine.missing():
        packages = " and ".join(engine.PACKAGES)
        print(f"No Docker Engine answers: {packages} of this system will be installed now.")
        print("  Ctrl-C, if you would rather install Docker your own way and run this again.", flush=True)
    with step("Docker Engine") as note:
        note.text = engine.ensure(state)
    _heed([preflight.bridge(plan.network, plan.hub, engine.hubs_on(plan.network))])
    missing = [] if shutil.which("mmdebstrap") else ["mmdebstrap"]
    missing += [] if debian_base.KEYRING.exists() else ["debian-archive-keyring"]  # Ubuntu
    missing += [package for package, program in (("nftables", "nft"), ("iproute2", "ip")) if not shutil.which(program)]
    missing += [] if shutil.which("gcc") else ["gcc", "libc6-dev"]  # for the demo's stand-in driver library
    missing += buildkit.missing_packages()
    if missing:
        with step("Debian packages") as note:
            engine.apt_install(missing, state)
            note.text = ", ".join(missing)
    with step("Node packages"):
        node_packages.ensure(state)
    listed = image_recipe.read_catalog()
    without_torch = [variant.name for variant in listed.variants if not variant.torch]
    small = _too_small_for(listed.usual[0].image, state)
    with step("Base image"):
        build_images.build_base(build_images.connect(), listed.base, build_images.cache_folder())
    if small and without_torch:
        with step(f"Image {without_torch[0]}"):
            build_images.build(without_torch[0])
    else:
        _build_variant(listed.usual[0].name, without_torch)


def _too_small_for(image: str, state: Path) -> bool:
    """Whether only the small variant has room here; Problem where even that has not. What is built is not asked."""
    if build_images.exists(image):
        return False
    places = (state, engine.root_folder())
    room, place = min((preflight.free_bytes(place), place) for place in places)
    finding = preflight.disk(room, place)
    _heed([finding])
    return finding.status is Status.WARN


def _build_variant(name: str, without_torch: list[str]) -> None:
    """Build the default variant; where its PyTorch is not to be had, say so and build what needs none."""
    reason = None
    with step(f"Image {name}") as note:
        try:
            build_images.build(name)
        except wheels.WheelError as error:
            if not without_torch or name in without_torch:
                raise
            reason, note.text = error, "left out"
    if reason is not None:
        print(f"  {reason} The variant {name} is left out for now; {without_torch[0]} takes its place.")
        with step(f"Image {without_torch[0]}"):
            build_images.build(without_torch[0])


def bring_settings(state: Path) -> tuple[Settings, Demo | None]:
    """Read the operator's settings; where there are none, make the demo and read its settings."""
    demo = None
    if settings_file.locate().resolve() == state / "settings.toml":
        with step("Demo: accounts, GPUs, settings") as note:
            demo = prepare_demo(state)
            note.text = "GPUs are simulated" if demo.simulated else ""
    os.environ["GPUCAMPUS_SETTINGS"] = str(settings_file.locate().resolve())
    return settings_file.load(), demo


def start_sign_in(state: Path, demo: Demo) -> str:
    """Start the demo's identity provider unless it answers."""
    command = [str(node_packages.NODE), str(ROOT / "deploy/demo/idp.mjs"), str(demo.folder)]
    program = Program(what="The sign-in", pid_file=SIGN_IN, command=tuple(command), env=node_packages.environment())
    return program.ensure(state, f"{demo.issuer}/.well-known/openid-configuration")


def start_proxy(state: Path, settings: Settings) -> str:
    """Start the proxy unless it answers; it sends each person's host name to that person's server."""
    command = programs.proxy(settings)
    env = node_packages.environment() | dict(command.env)
    program = Program(what="The proxy", pid_file=PROXY, command=command.words, env=env)
    token = {"Authorization": f"token {command.env['CONFIGPROXY_AUTH_TOKEN']}"}
    return program.ensure(state, f"http://127.0.0.1:{settings.hub.proxy_api_port}/api/routes", token)


def start_hub(state: Path, settings: Settings) -> subprocess.Popen[bytes] | None:
    """Start the hub and wait until it answers through the proxy; None where one runs already."""
    file, log = state / "run" / HUB, state / "log/hub.log"
    if processes.read(file) is not None:
        return None
    command = programs.hub(settings)
    env = node_packages.environment() | dict(command.env)
    address = f"http://127.0.0.1:{settings.hub.listen_port}/hub/health"
    host = {"Host": urlsplit(settings.hub.public_url).netloc}
    log.parent.mkdir(parents=True, exist_ok=True)
    with step("Hub"), log.open("wb") as output:
        # in our process group: Ctrl-C reaches it like any program in the foreground
        hub = subprocess.Popen(
            command.words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=state
        )
        processes.record(file, hub.pid, command.words)
        try:
            processes.wait_until(
                lambda: processes.answers(address, headers=host) == 200,
                what="The hub",
                running=lambda: hub.poll() is None,
                log=log,
                limit_s=READY_S,
            )
        except BaseException:
            hub.terminate()
            hub.wait()
            raise
    return hub


def pass_signals_on(hub: subprocess.Popen[bytes]) -> None:
    """Let a request to end reach the hub, not us; the terminal's own Ctrl-C reaches it by itself."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            hub.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)


def wait_for(hub: subprocess.Popen[bytes], state: Path) -> int:
    """Wait for the hub to end, and say what goes on without it."""
    status = hub.wait()
    (state / "run" / HUB).unlink(missing_ok=True)
    if status not in {0, -signal.SIGINT, -signal.SIGTERM}:
        log = state / "log/hub.log"
        print(f"\nThe hub ended by itself ({status}); its log {log} says:\n{processes.tail(log)}", file=sys.stderr)
        return 1
    print("\nThe hub has ended; servers, proxy and sign-in go on. `make run` brings it back, `make stop` ends them.")
    return 0


def welcome(settings: Settings, demo: Demo | None) -> None:
    """Say where to sign in, and as whom."""
    print(f"\n  {settings.hub.public_url}{'  (GPUs are simulated)' if settings.gpus.simulated else ''}\n")
    if demo is not None:
        print(f"{accounts_table(demo.passwords)}\n")
        if command := tunnel(os.environ, settings):
            print(f"  No desktop here: run this on your own computer, then open the address there.\n  {command}\n")


def tunnel(env: Mapping[str, str], settings: Settings) -> str:
    """The command that brings the demo to the desk of somebody who came by SSH; empty on a desktop.

    One forwarded port serves every server, since all host names below localhost lead to it; the sign-in has its own.
    """
    came = env.get("SSH_CONNECTION", "").split()
    if not came and (env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")):
        return ""
    user = env.get("SUDO_USER") or getpass.getuser()
    host = came[2] if len(came) > 2 else socket.gethostname()
    ports = [urlsplit(address).port or 80 for address in (settings.hub.public_url, settings.sign_in.issuer)]
    return f"ssh -L {ports[0]}:localhost:{ports[0]} -L {ports[1]}:127.0.0.1:{ports[1]} {user}@{host}"


@contextmanager
def _only_one(state: Path) -> Iterator[None]:
    """Let one `make run` at a time prepare and start things."""
    file = state / "run/up.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Problem("Another `make run` is at work with this state folder: wait for it, or end it.") from error
        yield


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nInterrupted; `make run` goes on from here.")
