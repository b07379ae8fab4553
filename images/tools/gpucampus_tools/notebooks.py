"""What git runs for notebooks: nbstripout, except for files that are no notebooks at the moment.

A merge leaves its marks in a file, and then it is no JSON. nbstripout refuses such a file, so that `git diff` would
fail until the conflict is solved; here the file passes as it is, with a line that says so.
"""

import io
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Write a notebook without its outputs, from the file named (textconv), else from standard input (clean)."""
    data = Path(arguments[0]).read_bytes() if arguments else sys.stdin.buffer.read()
    try:
        json.loads(data)
    except ValueError:
        if data.strip():
            print("Not a notebook at the moment, so its outputs are not removed.", file=sys.stderr)
        sys.stdout.buffer.write(data)
        return
    sys.argv = ["nbstripout", "--keep-id"]
    sys.stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    runpy.run_module("nbstripout", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
