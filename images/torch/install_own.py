"""Put the project's own programs into an image, and what it says of itself: the last layer, run while it is built.

The folder named on the command line holds `gpucampus_tools/` (a package for the environment), `bin/`, `etc/`, `venv/`
(files of the environment itself), `overrides.json` (JupyterLab's defaults), and `audit/`.
"""

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

OF_ITSELF = Path("/etc/gpucampus/variant.json")
ASK_TORCH = """
import json, torch
flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)  # a build for the processor has no such function
print(json.dumps([torch.__version__, torch.version.cuda, flags()]))
"""


def copy(source: Path, target: Path, mode: int) -> None:
    """Copy a tree; each file gets the mode, whatever it was where the image was built."""
    for file in sorted(path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
        place.chmod(mode)


def check_torch(said: dict[str, object], version: str, cuda: str | None, flags: str | None) -> list[str]:
    """Compare PyTorch itself with what the catalog says of the variant; return what differs.

    The flags are the wheel's own list of what it holds machine code for, which needs no GPU to be read.
    """
    built = sorted(int(number) for number in re.findall(r"sm_(\d+)", flags or ""))
    found = {"torch": version.partition("+")[0], "cuda": cuda or "", "architectures": built}
    return [f"{key} = {said[key]!r}, and the wheel says {found[key]!r}" for key in found if said[key] != found[key]]


def main() -> None:
    """Copy all of it, and check that the variant is what the catalog says."""
    os.umask(0o022)
    layer, packages = Path(sys.argv[1]), Path(sysconfig.get_path("purelib"))
    copy(layer / "gpucampus_tools", packages / "gpucampus_tools", 0o644)
    for source in sorted((packages / "gpucampus_tools").rglob("*.py")):
        py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    copy(layer / "bin", Path("/usr/local/bin"), 0o755)
    copy(layer / "etc", Path("/etc"), 0o644)
    copy(layer / "venv", Path(sys.prefix), 0o644)
    copy(layer / "audit", Path("/audit"), 0o644)
    settings = Path(sys.prefix) / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(layer / "overrides.json", settings / "overrides.json")
    said = json.loads(OF_ITSELF.read_text(encoding="utf-8"))
    if said["torch"]:
        asked = subprocess.run([sys.executable, "-I", "-c", ASK_TORCH], check=True, stdout=subprocess.PIPE, text=True)
        if wrong := check_torch(said, *json.loads(asked.stdout)):
            sys.exit(f"images/catalog.toml does not fit the variant {said['variant']}: {'; '.join(wrong)}.")


if __name__ == "__main__":
    main()
