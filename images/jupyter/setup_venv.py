"""Make a fresh virtual environment small and quick to start: run by its own Python, once, while the image is built.

Leaves out what nobody runs on a campus (test suites, static libraries), replaces one slow import, turns off what
JupyterLab would fetch from the internet, and compiles bytecode, which a server's user could not keep: the environment
belongs to root.
"""

import base64
import compileall
import hashlib
import py_compile
import re
import shutil
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Large, and mostly never imported: their bytecode is compiled for the parts that `import torch` reaches.
COLD = ("torch", "sympy", "networkx")
TORCH_HOT = ("_*", "*.py", "nn", "utils", "optim", "autograd", "cuda", "distributed", "multiprocessing", "fx")
# numpy.testing and torch.testing are for users; numpy's own tests import pieces that others import, too.
KEEP_TESTS = ("numpy", "torch")


def trim(packages: Path) -> None:
    """Remove test suites and static libraries."""
    for folder in sorted(packages.rglob("*")):
        top = folder.relative_to(packages).parts[0]
        if folder.name in {"test", "tests"} and top not in KEEP_TESTS and folder.is_dir():
            shutil.rmtree(folder)
    shutil.rmtree(packages / "torch/test", ignore_errors=True)
    for leftover in (*packages.glob("torch/bin/test_*"), *packages.rglob("*.a")):
        leftover.unlink()


def make_uri_grammar_lazy(packages: Path) -> None:
    """Put lazy_rfc3987.py in the place of the package's __init__.py, and say so in the package's record of files."""
    target = packages / "rfc3987_syntax/__init__.py"
    if target.read_text().strip() != "from .syntax_helpers import *":
        sys.exit("rfc3987_syntax has changed: does it still compile its grammar at import? Then adapt setup_venv.py.")
    replacement = (HERE / "lazy_rfc3987.py").read_bytes()
    target.write_bytes(replacement)
    digest = base64.urlsafe_b64encode(hashlib.sha256(replacement).digest()).rstrip(b"=").decode()
    (record,) = packages.glob("rfc3987_syntax-*.dist-info/RECORD")
    line = f"rfc3987_syntax/__init__.py,sha256={digest},{len(replacement)}"
    record.write_text(re.sub(r"^rfc3987_syntax/__init__\.py,.*$", line, record.read_text(), flags=re.MULTILINE))


def compile_bytecode(packages: Path) -> None:
    """Compile all that a start or `import torch` needs; unchecked, since nobody can edit the sources."""
    hot = [path for path in packages.iterdir() if path.name not in COLD]
    hot += [path for pattern in TORCH_HOT for path in packages.glob(f"torch/{pattern}")]
    for path in hot:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        if path.is_dir():
            compileall.compile_dir(path, quiet=2, workers=0, invalidation_mode=mode)
        elif path.suffix == ".py":
            compileall.compile_file(path, quiet=2, invalidation_mode=mode)


def main() -> None:
    """Do all of it to the environment that this Python belongs to."""
    packages = Path(sysconfig.get_path("purelib"))
    trim(packages)
    make_uri_grammar_lazy(packages)
    settings = Path(sys.prefix) / "share/jupyter/lab/settings"
    settings.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "overrides.json", settings)
    (Path(sys.prefix) / ".lock").unlink(missing_ok=True)  # uv's, and everybody could write to it
    compile_bytecode(packages)


if __name__ == "__main__":
    main()
