"""Where each member of a backup belongs on this machine, as the settings say."""

import os
from dataclasses import dataclass
from pathlib import Path

from spawner import settings as settings_file
from spawner.core.names import printable
from spawner.keeping.archive import is_member
from spawner.keeping.databases import DATABASES
from spawner.keeping.files import KeepingError
from spawner.settings import Settings

__all__ = ["Places", "default_state", "settings_target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The files of one hub."""

    settings: Path
    state: Path
    catalog: Path
    config_dir: Path | None
    client_secret: Path
    campus_ca: Path | None

    @classmethod
    def of(cls, settings: Settings, file: Path) -> "Places":
        """The places that settings name, and the file that they stand in."""
        return cls(
            settings=file.absolute(),
            state=settings.state,
            catalog=settings.catalog,
            config_dir=settings.config_dir,
            client_secret=settings.sign_in.client_secret_file,
            campus_ca=settings.campus.ca_file,
        )

    def target(self, member: str) -> Path:
        """Where a member belongs."""
        section, _, rest = member.partition("/")
        if section == "config.d":
            if self.config_dir is None:
                raise KeepingError(f"the settings name no config_dir, so {member} belongs nowhere")
            return self.config_dir / rest
        if member == "campus_ca":
            if self.campus_ca is None:
                raise KeepingError("the settings name no campus.ca_file, so campus_ca belongs nowhere")
            return self.campus_ca
        named = {"settings.toml": self.settings, "catalog.toml": self.catalog, "client_secret": self.client_secret}
        return named.get(member, self.state / member)

    def present(self, *, audit: bool) -> dict[str, Path]:
        """The files that are there, by member; KeepingError where one cannot be kept under its name."""
        state = self.state
        found = {database.name: state / database.name for database in DATABASES}
        found |= {"settings.toml": self.settings, "catalog.toml": self.catalog}
        found |= _below(state / "secrets", "secrets")
        if self.client_secret not in found.values():
            found["client_secret"] = self.client_secret
        if self.campus_ca is not None and self.campus_ca not in found.values():
            found["campus_ca"] = self.campus_ca
        if self.config_dir is not None:
            found |= _below(self.config_dir, "config.d")
        if audit:
            found |= {f"log/{path.name}": path for path in (state / "log").glob("audit.jsonl*")}
        found = {member: path for member, path in found.items() if path.is_file()}
        for member, path in found.items():
            if not is_member(member):
                raise KeepingError(
                    f"{path} cannot be kept under its name: allowed are letters, digits and . _ @ + -; rename it, or "
                    "move it elsewhere"
                )
        return found


def default_state() -> Path:
    """The state folder of a machine that has no settings yet."""
    return Path(os.environ.get("GPUCAMPUS_STATE", settings_file.ROOT / ".state")).absolute()


def settings_target(was: str) -> Path:
    """Where the settings of a backup belong: where they are now; on a bare machine as they were in the checkout."""
    located = settings_file.locate().absolute()
    if located.exists() or os.environ.get("GPUCAMPUS_SETTINGS"):
        return located
    if was in {"settings.toml", ".state/settings.toml"}:
        return settings_file.ROOT / was
    raise KeepingError(
        f"there are no settings here, and the backup had them in {printable(was, 200)}: set GPUCAMPUS_SETTINGS to the "
        "place where they shall be, and run this again"
    )


def _below(folder: Path, section: str) -> dict[str, Path]:
    """The ordinary files below a folder; drafts and caches (with a dot or two underscores first) are not kept."""
    return {
        f"{section}/{path.relative_to(folder)}": path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
    }
