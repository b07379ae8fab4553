"""Images against their recipes."""

import pytest

from spawner.doctor import recipes
from spawner.doctor.machine import NotLookedAtError
from spawner.doctor.recipes import check_recipes, judge_recipes
from spawner.findings import Status
from tests.doctor.trees import by_name, machine_of, settings_of, statuses

OK, WARN, _ = Status


def image(variant: str, *, built: bool = True, current: bool = True) -> dict[str, object]:
    return {"variant": variant, "image": f"gpucampus/{variant}:1", "built": built, "current": current, "jupyterhub": ""}


@pytest.fixture
def machine(tmp_path):
    return machine_of(tmp_path, settings=settings_of(tmp_path))


def test_an_image_that_is_older_than_its_recipe_is_named_with_the_command():
    found = by_name(judge_recipes([image("cpu"), image("cu126", current=False), image("plain", built=False)]))
    assert {name: finding.status for name, finding in found.items()} == {"recipe cu126": WARN}
    assert "older than its recipe" in found["recipe cu126"].text
    assert found["recipe cu126"].remedy == "make images"


def test_images_that_are_not_built_are_counted_nowhere():
    found = by_name(judge_recipes([image("cpu"), image("plain", built=False, current=False)]))["recipe"]
    assert (found.status, "make: 1" in found.text) == (OK, True)


def test_without_recipes_beside_the_program_nothing_is_wrong(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(recipes, "ROOT", tmp_path)
    monkeypatch.setattr(recipes, "look_at_images", lambda _limit: pytest.fail("there is nothing to compare with"))
    assert statuses(check_recipes(machine)) == {"recipe": OK}


def test_what_the_build_cannot_say_is_not_looked_at(machine, monkeypatch):
    monkeypatch.setattr(recipes, "look_at_images", lambda _limit: "the images are unknown: no lock")
    with pytest.raises(NotLookedAtError, match="no lock"):
        list(check_recipes(machine))
    monkeypatch.setattr(recipes, "look_at_images", lambda _limit: [image("cpu", current=False)])
    assert statuses(check_recipes(machine)) == {"recipe cpu": WARN}


def test_a_silent_engine_is_one_finding_and_not_this_one_s(tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "look_at_images", lambda _limit: pytest.fail("nobody would answer"))
    silent = machine_of(tmp_path, settings=settings_of(tmp_path), engine_trouble="refused")
    with pytest.raises(NotLookedAtError, match="engine"):
        list(check_recipes(silent))
