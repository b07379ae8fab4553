"""`python -m spawner.doctor.config_child jupyterhub_config.py`: which settings of it no class knows, as JSON.

Loads the file as JupyterHub does, with everything in it that acts on the machine (the hub's lock, the engine's network,
the identity provider, tokens) replaced by stand-ins, so that a look changes nothing and needs nobody to answer.
"""

import difflib
import json
import sys
from pathlib import Path
from typing import Any

from jupyterhub.app import JupyterHub
from traitlets import TraitError
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from spawner import auth, campus, hub_api, metrics, runtime
from spawner.keeping import lock
from spawner.settings import SignInSettings

__all__ = ["load", "unknown"]

_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "userinfo_endpoint")


def load(path: Path) -> Config:
    """Load a configuration file and whatever it loads."""
    stand_ins: tuple[tuple[object, str, object], ...] = (
        (lock, "admit", None),
        (campus, "apply", None),
        (runtime, "prepare", None),
        (metrics, "publish", None),
        (auth, "discover", dict.fromkeys(_ENDPOINTS, "https://nowhere.invalid")),
        (hub_api, "ensure_token", "0" * 64),
        (SignInSettings, "client_secret", "none"),
    )
    for owner, name, answer in stand_ins:
        setattr(owner, name, lambda *_, answer=answer, **__: answer)
    found: Config = PyFileConfigLoader(path.name, path=str(path.parent)).load_config()
    return found


def unknown(config: Config) -> list[dict[str, str]]:
    """List what no class knows: a class name, or a class name and a trait, each with the nearest that there is."""
    classes = _classes(config)
    by_name: dict[str, set[str]] = {}
    for cls in classes:
        own = set(cls.class_trait_names(config=True))
        for ancestor in cls.__mro__:
            # a section of an ancestor's name holds for every class below it
            if hasattr(ancestor, "class_trait_names"):
                by_name.setdefault(ancestor.__name__, set()).update(own)
    found = []
    for section, values in config.items():
        if section not in by_name:
            found.append({"class": section, "trait": "", "near": _near(section, by_name)})
            continue
        found += [
            {"class": section, "trait": trait, "near": _near(trait, by_name[section])}
            for trait in values
            if trait not in by_name[section]
        ]
    return found


def _near(word: str, words: Any) -> str:  # noqa: ANN401 - any names
    return next(iter(difflib.get_close_matches(word, sorted(words), 1)), "")


def _classes(config: Config) -> list[Any]:
    """Every class that the hub makes with this configuration, and those that it knows beside."""
    app = JupyterHub()
    classes = [JupyterHub, *app.classes]
    for name in ("spawner_class", "authenticator_class", "proxy_class"):
        try:
            if name in config.JupyterHub:
                setattr(app, name, config.JupyterHub[name])
            classes.append(getattr(app, name))
        except (TraitError, ImportError, AttributeError) as error:
            raise SystemExit(f"c.JupyterHub.{name}: {error}") from error
    return classes


if __name__ == "__main__":
    print(json.dumps({"unknown": unknown(load(Path(sys.argv[1]).resolve()))}))
