"""Licences of Debian packages are those that their copyright files name, and no others."""

from typing import Any

import pytest

from deploy.image_licences import named_in, with_licences


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param(
            "Files: *\nLicense: GPL-2+\n text\nLicense:  MIT \nLicense: GPL-2+\n", ("GPL-2+", "MIT"), id="fields"
        ),
        pytest.param(
            "see /usr/share/common-licenses/LGPL-2.1.\nand `/usr/share/common-licenses/GPL'",
            ("LGPL-2.1", "GPL"),
            id="old",
        ),
        pytest.param("You may copy this.", (), id="names-none"),
        pytest.param("The License: is below", (), id="not-a-field"),
    ],
)
def test_names_of_a_copyright_file(text, names):
    assert named_in(text) == names


def test_packages_that_share_a_folder_share_its_licence_and_a_link_does_not_lead_out_of_the_image(tmp_path):
    root = tmp_path / "root"
    docs = root / "usr/share/doc"
    (docs / "bash").mkdir(parents=True)
    (docs / "bash/copyright").write_text("License: GPL-3+\n")
    (docs / "bash-extra").symlink_to("bash")
    outside = tmp_path / "secret"
    outside.write_text("License: of this machine\n")
    (docs / "evil").mkdir()
    (docs / "evil/copyright").symlink_to(outside)
    known = {"name": "idna", "licenses": [{"license": {"id": "MIT"}}]}
    parts: list[dict[str, Any]] = [{"name": "bash"}, {"name": "bash-extra"}, {"name": "evil"}, {"name": "gone"}, known]
    found = {part["name"]: part.get("licenses") for part in with_licences(root, parts)}
    gpl = [{"license": {"name": "GPL-3+"}}]
    assert found == {"bash": gpl, "bash-extra": gpl, "evil": None, "gone": None, "idna": known["licenses"]}
