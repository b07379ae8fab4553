"""The hub's pages: templates that extend JupyterHub's own, and the texts they show.

JupyterHub serves static files from its own folder only, so the stylesheet is included into each page: no route, no
second place to install, and a page is right even while the proxy is being restarted.
"""

import tomllib
from pathlib import Path

__all__ = ["TEMPLATES", "template_vars"]

HERE = Path(__file__).resolve().parent
TEMPLATES = HERE / "templates"


def template_vars(language: str, *, simulated: bool) -> dict[str, object]:
    """Return the values of `c.JupyterHub.template_vars` that the templates here read."""
    texts = tomllib.loads((HERE / "texts.toml").read_text(encoding="utf-8"))["pages"]
    return {
        "gpucampus_language": language,
        "gpucampus_simulated": simulated,
        "gpucampus_texts": texts[language],
    }
