"""The files for Prometheus say what the hub says."""

import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # JupyterHub brings it, without types

from spawner.metrics import STATES
from spawner.settings import ROOT, HubSettings, NetworkSettings
from tests.test_metrics import families
from tests.test_runtime import shared  # noqa: F401 - a fixture

FOLDER = ROOT / "deploy" / "prometheus"


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in read("gpucampus.rules.yml")["groups"] for rule in group["rules"]]


async def test_the_alerts_name_figures_and_labels_that_there_are(shared):  # noqa: F811
    await shared.watch.read()
    shared.figures.started("failed", 1)
    known = {sample.name: sample.labels for family in families(shared) for sample in family.samples}
    for rule in rules():
        named = re.findall(r"(gpucampus_\w+)(?:\{(\w+)=\"(\w+)\"\})?", rule["expr"])
        assert named or rule["expr"].startswith("up{"), rule
        for name, label, _value in named:
            assert name in known, rule
            assert not label or label in known[name], rule
        assert rule["annotations"]["summary"]


async def test_each_figure_is_explained_and_nothing_else(shared):  # noqa: F811
    await shared.watch.read()
    page = (ROOT / "docs" / "howto" / "metrics.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `(gpucampus_\w+)`", page, re.MULTILINE))
    assert explained == {family.name + "_total" * (family.type == "counter") for family in families(shared)}


def test_every_state_that_an_alert_waits_for_can_be():
    asked = {state for rule in rules() for state in re.findall(r'state="(\w+)"', rule["expr"])}
    assert asked
    assert asked <= set(STATES)


def test_the_scrape_example_asks_the_hub_where_it_is_with_a_token_from_a_file():
    (job,) = read("gpucampus.yml")["scrape_configs"]
    assert job["metrics_path"] == "/hub/metrics"
    assert job["authorization"] == {"type": "Bearer", "credentials_file": "/etc/prometheus/gpucampus_token"}
    assert job["static_configs"] == [{"targets": [f"{NetworkSettings().gateway}:{HubSettings().hub_port}"]}]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's prometheus")
@pytest.mark.parametrize("words", ["rules gpucampus.rules.yml", "config --syntax-only gpucampus.yml"])
def test_prometheus_takes_the_files(words):
    done = subprocess.run(
        ["promtool", "check", *words.split()], cwd=FOLDER, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
