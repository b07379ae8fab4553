"""The papers of an image say what was found, and nothing better than that."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.image_audit import cis_summary, merge, provenance
from deploy.image_tools import ImageProblem
from spawner.core.model import Variant

CPU = Variant(name="cpu", title="CPU", image="gpucampus/cpu:1")
RULE = "xccdf_org.ssgproject.content_rule_"


def results(tmp_path: Path, **rules: str) -> Path:
    """An answer of oscap with these rules and results."""
    found = "".join(
        f'<rule-result idref="{RULE}{name}"><result>{result}</result></rule-result>' for name, result in rules.items()
    )
    path = tmp_path / "results.xml"
    path.write_text(
        '<Benchmark xmlns="http://checklists.nist.gov/xccdf/1.2"><version>0.1.82</version>'
        f"<TestResult>{found}<score>96.456</score></TestResult></Benchmark>"
    )
    return path


def test_what_does_not_apply_is_counted_apart_and_failed_rules_are_named(tmp_path):
    found = cis_summary(results(tmp_path, a="pass", b="notapplicable", c="fail", d="notselected", e="notapplicable"))
    assert dict(found.counts) == {"fail": 1, "notapplicable": 2, "pass": 1}
    assert (found.failed, found.score, found.rules) == (("c",), 96.46, "0.1.82")
    assert "not as passed" in found.note


def test_a_rule_that_could_not_be_judged_has_not_passed(tmp_path):
    assert cis_summary(results(tmp_path, a="pass", b="error", c="unknown")).failed == ("b", "c")


@pytest.mark.parametrize("rules", [{}, {"a": "notapplicable"}, {"a": "fail"}])
def test_a_report_in_which_nothing_passed_was_made_of_the_wrong_folder(tmp_path, rules):
    with pytest.raises(ImageProblem, match="judged nothing"):
        cis_summary(results(tmp_path, **rules))


def test_both_parts_are_in_one_sbom_each_component_once_with_its_licence():
    licensed = {"name": "idna", "purl": "pkg:pypi/idna@3", "licenses": [{"license": {"id": "BSD-3-Clause"}}]}
    bare = {"name": "bash", "purl": "pkg:deb/debian/bash@5"}
    bom = merge(CPU, "sha256:1", [licensed, {"name": "own", "bom-ref": "own==1"}], [bare, licensed])
    assert [part["bom-ref"] for part in bom["components"]] == ["own==1", "pkg:deb/debian/bash@5", "pkg:pypi/idna@3"]
    assert bom["components"][2]["licenses"]
    assert bom["metadata"]["component"]["version"] == "sha256:1"
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")


def test_provenance_names_inputs_base_and_revision():
    attrs = {
        "Id": "sha256:1",
        "Created": "2026-01-01T00:00:00Z",
        "Config": {"Labels": {"gpucampus.inputs": "abc"}},
        "RootFS": {"Layers": ["sha256:base", "sha256:top"]},
    }
    said = provenance(CPU, attrs, {"revision": "f00", "changed": False}, datetime(2026, 1, 2, tzinfo=UTC))
    assert (said["image"], said["inputs"], said["base_layer"]) == ("sha256:1", "abc", "sha256:base")
    assert (said["revision"], said["changed"], said["papers_made"]) == ("f00", False, "2026-01-02T00:00:00+00:00")
