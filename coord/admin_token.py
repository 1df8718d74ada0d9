"""The token of a daemon's admin port, in `admin.json` of its data directory (mode 0600).

Requests that do more than read must carry the token: the port itself has no authentication.
"""

from __future__ import annotations

import json
from typing import Final

ADMIN_FILE: Final = "admin.json"
TOKEN_BYTES: Final = 32


def token_in(content: bytes) -> str:
    """Return the token in the content of `admin.json`, "" if there is none."""
    try:
        found = str(json.loads(content)["token"])
    except (ValueError, KeyError, TypeError):
        return ""
    return found if len(found) == 2 * TOKEN_BYTES else ""


def admin_json(address: tuple[str, int], token: str) -> bytes:
    """Return the content of `admin.json`."""
    return json.dumps({"admin": f"{address[0]}:{address[1]}", "token": token}).encode() + b"\n"
