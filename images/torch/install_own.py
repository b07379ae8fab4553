"""Put the project's own programs into an image, and what it says of itself: the last layer, run while it is built.

The folder named on the command line holds `gpucampus_tools/` (a package for the environment), `bin/`, `etc/`,
`overrides.json` (JupyterLab's defaults), and `audit/`.
"""

import os
import py_compile
import shutil
import sys
import sysconfig
from pathlib import Path


def copy(source: Path, target: Path, mode: int) -> None:
    """Copy a tree; each file gets the mode, whatever it was where the image was built."""
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
        place.chmod(mode)


def main() -> None:
    """Copy all of it."""
    os.umask(0o022)
    layer, packages = Path(sys.argv[1]), Path(sysconfig.get_path("purelib"))
    copy(layer / "gpucampus_tools", packages / "gpucampus_tools", 0o644)
    for source in sorted((packages / "gpucampus_tools").rglob("*.py")):
        py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    copy(layer / "bin", Path("/usr/local/bin"), 0o755)
    copy(layer / "etc", Path("/etc"), 0o644)
    copy(layer / "audit", Path("/audit"), 0o644)
    settings = Path(sys.prefix) / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(layer / "overrides.json", settings / "overrides.json")


if __name__ == "__main__":
    main()
