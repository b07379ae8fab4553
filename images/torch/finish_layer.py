"""Make what a layer has brought small and quick to start: run by the environment's own Python while the image is built.

Leaves out what nobody runs on a campus (test suites, static libraries, maps of JavaScript sources, a solver for several
GPUs that nothing links to), replaces one slow import, and compiles bytecode, which a server's user could not keep: the
environment belongs to root. What is left out is listed in /audit/removed.txt: the packages' records still name it.
"""

import base64
import hashlib
import importlib.util
import os
import py_compile
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
REMOVED = Path("/audit/removed.txt")
# Large, and mostly never imported: their bytecode is compiled for the parts that `import torch` reaches.
COLD = ("torch", "sympy", "networkx")
TORCH_HOT = ("_*", "*.py", "nn", "utils", "optim", "autograd", "cuda", "distributed", "multiprocessing", "fx")
# numpy.testing and torch.testing are for users; numpy's own tests import pieces that others import, too.
KEEP_TESTS = ("numpy", "torch")
UNUSED = (
    "torch/test",
    "torch/bin/test_*",
    "torch/bin/protoc*",
    "nvidia/*/lib/libcusolverMg.so.*",
    "jupyterlab/galata",  # what JupyterLab's own browser tests need
)


def unwanted(packages: Path) -> Iterator[Path]:
    """What goes: test suites, static libraries, and the parts named above."""
    for folder in sorted(packages.rglob("test*")):
        top = folder.relative_to(packages).parts[0]
        if folder.name in {"test", "tests"} and top not in KEEP_TESTS and folder.is_dir():
            yield folder
    for pattern in UNUSED:
        yield from sorted(packages.glob(pattern))
    yield from sorted(packages.rglob("*.a"))
    for folder in (packages, Path(sys.prefix) / "share"):
        yield from sorted(folder.rglob("*.js.map"))


def trim(packages: Path) -> list[str]:
    """Remove what is unwanted; return the names of it below the environment."""
    removed = []
    for path in unwanted(packages):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        else:
            continue  # in a folder that has gone already
        removed.append(str(path.relative_to(sys.prefix)))
    return removed


def make_uri_grammar_lazy(packages: Path) -> None:
    """Put lazy_rfc3987.py in the place of the package's __init__.py, and say so in the package's record of files."""
    target = packages / "rfc3987_syntax/__init__.py"
    replacement = (HERE / "lazy_rfc3987.py").read_bytes()
    if not target.exists() or target.read_bytes() == replacement:
        return
    if target.read_text().strip() != "from .syntax_helpers import *":
        sys.exit("rfc3987_syntax has changed: does it still compile its grammar at import? Then adapt finish_layer.py.")
    target.unlink()  # a link to the installer's cache
    target.write_bytes(replacement)
    digest = base64.urlsafe_b64encode(hashlib.sha256(replacement).digest()).rstrip(b"=").decode()
    (record,) = packages.glob("rfc3987_syntax-*.dist-info/RECORD")
    line = f"rfc3987_syntax/__init__.py,sha256={digest},{len(replacement)}"
    text = re.sub(r"^rfc3987_syntax/__init__\.py,.*$", line, record.read_text(), flags=re.MULTILINE)
    record.unlink()
    record.write_text(text)


def uncompiled(packages: Path) -> list[str]:
    """The sources that a start or `import torch` needs and that no layer below has compiled."""
    hot = [path for path in packages.iterdir() if path.name not in COLD]
    hot += [path for pattern in TORCH_HOT for path in packages.glob(f"torch/{pattern}")]
    sources = [source for path in hot for source in ([path] if path.is_file() else path.rglob("*.py"))]
    return [
        str(source)
        for source in sources
        if source.suffix == ".py" and not Path(importlib.util.cache_from_source(str(source))).exists()
    ]


def compile_one(source: str) -> None:
    """Compile a file, unchecked, since nobody can edit the sources; a template that is no Python stays as it is."""
    py_compile.compile(source, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def main() -> None:
    """Do all of it to the environment that this Python belongs to."""
    packages = Path(sysconfig.get_path("purelib"))
    REMOVED.parent.mkdir(exist_ok=True)
    with REMOVED.open("a", encoding="utf-8") as listed:
        listed.writelines(f"{name}\n" for name in trim(packages))
    make_uri_grammar_lazy(packages)
    (Path(sys.prefix) / ".lock").unlink(missing_ok=True)  # uv's, and everybody could write to it
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, uncompiled(packages), chunksize=64))


if __name__ == "__main__":
    main()
