"""The list of commands, each with its module: only that one is imported, since all together take a second."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command

__all__ = ["COMMANDS", "LazyGroup"]

# in the order of the help text: the modules that register the command, and the first line of its own help
COMMANDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "status": (("look",), "Say in a few lines whether hub, engine and GPUs are well."),
    "gpus": (("look",), "List the GPUs of this machine: their state, and who holds them."),
    "leases": (("look",), "List what running servers hold, as the container engine has it."),
    "orphans": (
        ("look",),
        "List the leases that this hub does not answer for, each with the reason and the command that removes it.",
    ),
    "catalog": (("look",), "List the image variants."),
    "images": (("images",), "The images that servers run from."),
    "release": (("act",), "End a server: stop it as by hand and free what it holds."),
    "drain": (("act",), "Close a GPU or the node: no new leases, and its servers are stopped now as by hand."),
    "cordon": (("act",), "Close a GPU or the node: no new leases; servers that run go on."),
    "undrain": (("act",), "Open a GPU or the node again, whether it was drained or cordoned."),
    "doctor": (
        ("health",),
        "Look at everything that the hub stands on, and say what is wrong and what to do about it.",
    ),
    "backup": (
        ("keep",),
        "Keep databases, secrets, settings, catalog and config.d in one file; the hub may run. Homes are not in it.",
    ),
    "restore": (("keep",), "Put a backup in the place of what is here; the hub must be down, servers go on."),
    "upgrade": (
        ("keep",),
        "Migrate both databases to this version, after a backup; the hub must be down, servers go on.",
    ),
    "history": (
        ("past",),
        "List past and present leases: who had which GPUs and which address, from when to when, and why it ended.",
    ),
    "settings": (("look", "keep"), "The settings file."),
}


class LazyGroup(TyperGroup):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 - the parent's argument, whose type is private
        """Name all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - as above
        """Import the modules of a command and give what they register; None where there is no such command."""
        if cmd_name not in self.commands:
            # for a word that is none, all of them: then the nearest can be named
            named = [COMMANDS[cmd_name]] if cmd_name in COMMANDS else COMMANDS.values()
            for module in {module for modules, _ in named for module in modules}:
                import_module(f"spawner.cli.{module}")
            from spawner.cli.show import app  # noqa: PLC0415 - it is made of this class

            made = get_command(app)
            assert isinstance(made, TyperGroup)  # noqa: S101 - for the types; it has a callback, which makes it one
            self.commands.update(made.commands)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - as above
        """Write the list without importing a command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])
