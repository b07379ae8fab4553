"""The command `gpucampus`: what the operator asks, and does, on a terminal.

Reads the settings, the engine, the GPUs and the records itself, so that it works while the hub is down; where the hub
is up and a server is its own, the hub is asked to act. Exit codes: 0 all is well, 1 there is a finding (said in one
line on stderr), 2 the command was typed wrongly. With --json the answer is one JSON object on stdout, whatever the exit
code.
"""

from spawner.cli import act, health, images, keep, look, past  # they register themselves, in the order of the help
from spawner.cli.show import app

__all__ = ["act", "app", "health", "images", "keep", "look", "main", "past"]


def main() -> None:
    """Run the command line."""
    app(prog_name="gpucampus")
