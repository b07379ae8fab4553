"""The demo's accounts: passwords made at the first run, kept readable for printing and hashed for the provider."""

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spawner.private_files import write_private

__all__ = ["ACCOUNTS", "Account", "ensure_accounts"]

READABLE = "abcdefghijkmnpqrstuvwxyz23456789"  # without 0 and o, 1 and l, which look alike
COST, BLOCK, LANES = 16384, 8, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Somebody of the demo. The subject never changes, so that homes stay theirs when the accounts are made anew."""

    login: str
    name: str
    groups: tuple[str, ...]
    may: str

    @property
    def subject(self) -> str:
        """What the hub knows the person by."""
        return f"demo-{self.login}"


ACCOUNTS = (
    Account(login="student", name="Sam Student", groups=("students",), may="1 GPU or MIG instance, up to 4 GiB"),
    Account(login="teacher", name="Tess Teacher", groups=("teachers",), may="1 GPU, instance or share, up to 8 GiB"),
    Account(login="researcher", name="Robin Researcher", groups=("researchers",), may="2 GPUs or shares, up to 16 GiB"),
    Account(
        login="admin", name="Alex Admin", groups=("hub-admins", "researchers"), may="as a researcher; runs the hub"
    ),
)


def ensure_accounts(folder: Path) -> dict[str, str]:
    """Bring accounts.json (passwords) and users.json (what the provider reads) into step; return the passwords.

    What somebody changed in users.json stays: groups, names, `disabled`, further people. A password that was changed in
    accounts.json is taken over.
    """
    passwords: dict[str, str] = _read(folder / "accounts.json")
    users = _read(folder / "users.json")
    for account in ACCOUNTS:
        password = passwords.setdefault(account.login, _new_password())
        user = users.setdefault(account.login, {"name": account.name, "groups": list(account.groups)})
        user["sub"] = account.subject
        if not _matches(password, str(user.get("password", ""))):
            user["password"] = _hashed(password)
    write_private(folder / "accounts.json", json.dumps(passwords, indent=1))
    write_private(folder / "users.json", json.dumps(users, indent=1))
    return {account.login: passwords[account.login] for account in ACCOUNTS}


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _new_password() -> str:
    """Three groups of four that are easy to type on a phone; 59 bits."""
    return "-".join("".join(secrets.choice(READABLE) for _ in range(4)) for _ in range(3))


def _derive(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=COST, r=BLOCK, p=LANES, dklen=32)


def _hashed(password: str) -> str:
    """The form that the provider reads: scrypt:N:r:p:salt:hash."""
    salt = secrets.token_bytes(16)
    parts = (base64.b64encode(part).decode() for part in (salt, _derive(password, salt)))
    return ":".join(("scrypt", str(COST), str(BLOCK), str(LANES), *parts))


def _matches(password: str, stored: str) -> bool:
    if not stored.startswith(f"scrypt:{COST}:{BLOCK}:{LANES}:"):
        return False
    salt, wanted = (base64.b64decode(part) for part in stored.split(":")[4:])
    return hmac.compare_digest(_derive(password, salt), wanted)
