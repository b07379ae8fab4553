"""The places that a first run downloads from, and whether each can be reached: asked before long steps begin."""

import configparser
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from deploy import outside
from spawner.findings import Finding, Status

__all__ = ["Source", "needed", "pip_index", "reach"]

ROOT = Path(__file__).resolve().parent.parent
ANSWERS_S = 8
PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A place that files come from."""

    what: str
    url: str
    setting: str  # how to name another


def needed(state: Path, env: Mapping[str, str], root: Path = ROOT) -> list[Source]:
    """Give what this run will ask; what has been fetched before is not asked for again."""
    found = []
    index = pip_index(env)
    if index:
        setting = "GPUCAMPUS_PIP_INDEX or campus.pip_index"
        found.append(Source(what="the Python packages' index", url=f"{index.rstrip('/')}/pip/", setting=setting))
    if not (root / "deploy/node_modules/.installed").exists():
        registry = env.get("npm_config_registry") or "https://registry.npmjs.org"
        setting = "GPUCAMPUS_NPM_REGISTRY or campus.npm_registry"
        url = f"{registry.rstrip('/')}/configurable-http-proxy"
        found.append(Source(what="the Node packages' registry", url=url, setting=setting))
    cache = Path(env.get("GPUCAMPUS_CACHE") or state / "cache")
    if all(archive.name.endswith(".partial.tar") for archive in cache.glob("debian-*.tar")):
        mirror = (env.get(outside.MIRROR) or outside.DEBIAN).rstrip("/")
        url, setting = f"{mirror}/debian/dists/bookworm/InRelease", "GPUCAMPUS_APT_MIRROR or campus.apt_mirror"
        found.append(Source(what="the Debian mirror", url=url, setting=setting))
    return found


def pip_index(env: Mapping[str, str], files: Iterable[str] = PIP_FILES) -> str:
    """Give the index that pip will ask; empty where it is told to ask none."""
    config = configparser.RawConfigParser(strict=False)
    for file in (*files, *([env["PIP_CONFIG_FILE"]] if env.get("PIP_CONFIG_FILE") else [])):
        try:
            config.read(Path(file).expanduser(), encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will say what is wrong
    no_index = env.get("PIP_NO_INDEX") or config.get("global", "no-index", fallback="")
    if str(no_index).lower() not in {"", "0", "false", "no"}:
        return ""
    return env.get("PIP_INDEX_URL") or config.get("global", "index-url", fallback="") or "https://pypi.org/simple"


def reach(sources: Iterable[Source]) -> list[Finding]:
    """Ask all of them at once."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        return list(threads.map(_reach, sources))


def _reach(source: Source) -> Finding:
    # an opener of its own: the shared one keeps the proxy and the certificates of its first use
    opener = urllib.request.build_opener()
    try:
        opener.open(urllib.request.Request(source.url, method="HEAD"), timeout=ANSWERS_S).close()  # noqa: S310 - ours
    except urllib.error.HTTPError as error:
        # any answer of the place itself will do; 407 and the 5xx of a gateway are a proxy's
        if error.code not in {407, 502, 503, 504}:
            return Finding(source.what, Status.OK, source.url)
        reason = f"{error.code} {error.reason}"
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", "") or error)
    else:
        return Finding(source.what, Status.OK, source.url)
    host = urllib.request.Request(source.url).host  # noqa: S310 - only taken apart
    scheme = source.url.partition(":")[0]
    proxy = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
    way = f"by the proxy {_without_password(proxy)}" if proxy else f"without a proxy ({scheme}_proxy is not set)"
    return Finding(
        source.what,
        Status.FAIL,
        f"{source.what} cannot be reached: {host} was asked {way} ({reason})",
        f"set {scheme}_proxy, or name a mirror in {source.setting}",
    )


def _without_password(proxy: str) -> str:
    scheme, mark, rest = proxy.rpartition("//")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
