"""Shows a program a person's own packages. Run by zz_gpucampus.pth as kernels and terminals start Python, so: light."""

import os
import site
import sys

__all__ = ["VARIABLE", "show"]

VARIABLE = "GPUCAMPUS_PACKAGES"


def show() -> None:
    """Add the folder that the variable names behind all others; nothing without the variable."""
    place = os.environ.get(VARIABLE)
    if not place:
        return
    packages = f"{place}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    try:  # noqa: SIM105 - contextlib takes time to import
        # a folder that is missing now is never looked at again, and the first %pip install would need a restart
        os.makedirs(packages, exist_ok=True)  # noqa: PTH103 - so does pathlib
    except OSError:
        pass  # a full home: there is nothing to be shown, and Python must start
    site.addsitedir(packages)
