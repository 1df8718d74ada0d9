"""Identities of scheme digest, as ZooKeeper writes them: the user, a colon, base64 of SHA-1 of `user:password`."""

from __future__ import annotations

import base64
import hashlib


def digest_of(user: str, password: str) -> str:
    """Return the id of a user with this password."""
    return f"{user}:{base64.b64encode(hashlib.sha1(f'{user}:{password}'.encode()).digest()).decode()}"


def is_digest(text: str) -> bool:
    """Return True for an id of scheme digest: user, colon, 20 bytes as base64."""
    user, _, digest = text.partition(":")
    try:
        return bool(user) and len(base64.b64decode(digest, validate=True)) == 20
    except ValueError:
        return False
