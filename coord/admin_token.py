"""The token of a daemon's admin port, in `admin.json` of its data directory (mode 0600).

Requests that do more than read must carry the token: the port itself has no authentication.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from coord.env import Entropy

ADMIN_FILE: Final = "admin.json"
TOKEN_BYTES: Final = 32


def token_in(content: bytes) -> str:
    """Return the token in the content of `admin.json`, "" if there is none."""
    try:
        found = str(json.loads(content)["token"])
    except (ValueError, KeyError, TypeError):
        return ""
    return found if len(found) == 2 * TOKEN_BYTES else ""


def token_or_new(content: bytes, entropy: Entropy) -> str:
    """Return the token in the content of `admin.json`, or a new token: a token stays valid over restarts."""
    return token_in(content) or entropy.token(TOKEN_BYTES).hex()


def read_admin_json(file: Path) -> bytes:
    """Return the content of `admin.json`, b"" if the file is missing. Raise OSError."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""


def admin_json(address: tuple[str, int], token: str) -> bytes:
    """Return the content of `admin.json`."""
    return json.dumps({"admin": f"{address[0]}:{address[1]}", "token": token}).encode() + b"\n"
