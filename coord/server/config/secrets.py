"""Files with secrets: SASL users, in ZooKeeper's JAAS syntax or as plain lines; the secret that all peers share.

Of a JAAS file only the section `Server` with ZooKeeper's DigestLoginModule is used:

    Server {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        user_alice="secret"
        user_bob="other";
    };

A plain file has a line `user:secret` per user; # begins a comment line.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from coord.errors import ConfigError

_MODULE: Final = "DigestLoginModule"
_USER: Final = "user_"
#: Token kinds: comments and blanks; strings; punctuation; words.
_TOKEN: Final = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<mark>[{};=])|(?P<word>[^\s{};="]+)""",
    re.DOTALL,
)
#: A shorter shared secret could be guessed from a recorded hello frame.
PEER_SECRET_BYTES_MIN: Final = 16


def read_jaas(path: Path) -> dict[str, str]:
    """Return user -> secret of the section `Server`; empty without that section. Raise ConfigError."""
    return parse_jaas(path, _read(path))


def parse_jaas(path: Path, text: str) -> dict[str, str]:
    """Parse the content of a JAAS file; `path` is for messages. Raise ConfigError."""
    tokens = _tokens(path, text)
    at = 0
    while at < len(tokens):
        name = tokens[at][1]
        if tokens[at][0] == "mark" or tokens[at + 1 : at + 2] != [("mark", "{")]:
            raise ConfigError(f"{path}: {name!r} does not begin a section")
        try:
            end = tokens.index(("mark", "}"), at)
        except ValueError:
            raise ConfigError(f"{path}: section {name} has no closing brace") from None
        if name == "Server":
            return _server_section(path, tokens[at + 2 : end])
        at = end + 1
        if tokens[at : at + 1] == [("mark", ";")]:
            at += 1
    return {}


def _server_section(path: Path, tokens: list[tuple[str, str]]) -> dict[str, str]:
    if not tokens or tokens[0][1].rpartition(".")[2] != _MODULE:
        raise ConfigError(f"{path}: only ZooKeeper's {_MODULE} is supported as login module")
    users: dict[str, str] = {}
    for at, token in enumerate(tokens):
        if token != ("mark", "="):
            continue
        key, value = tokens[at - 1][1], tokens[at + 1 : at + 2]
        if not value or value[0][0] == "mark":
            raise ConfigError(f"{path}: {key} has no value")
        if key.startswith(_USER) and len(key) > len(_USER):
            users[key.removeprefix(_USER)] = value[0][1]
    return users


def _tokens(path: Path, text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise ConfigError(f"{path}:{line}: a string has no closing quote")
        kind = match.lastgroup or ""
        if kind == "text":
            found.append((kind, re.sub(r"\\(.)", r"\1", match["text"])))
        elif kind != "blank":
            found.append((kind, match[kind]))
        at = match.end()
    return found


def read_users(path: Path) -> dict[str, str]:
    """Return user -> secret of a plain file. Raise ConfigError with the line."""
    users: dict[str, str] = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, colon, secret = line.partition(":")
        if not user or not colon or not secret:
            raise ConfigError(f"{path}:{number}: not user:secret")
        if user in users:
            raise ConfigError(f"{path}:{number}: user {user} occurs twice")
        users[user] = secret
    return users


def read_peer_secret(path: Path) -> bytes:
    """Return the secret that all nodes of a cluster share, without a final line end. Raise ConfigError."""
    secret = _read(path).strip().encode()
    if len(secret) < PEER_SECRET_BYTES_MIN:
        raise ConfigError(f"{path}: the peers' secret must have at least {PEER_SECRET_BYTES_MIN} bytes")
    return secret


def read_super_digest(path: Path) -> str:
    """Return `user:digest` of the user with all permissions, from the first line. Raise ConfigError."""
    lines = _read(path).splitlines()
    if not lines or not lines[0].strip():
        raise ConfigError(f"{path}: the first line is empty; it must be USER:DIGEST")
    return lines[0].strip()


def read_secret(path: Path) -> str:
    """Return a password, without a final line end. Raise ConfigError."""
    return _read(path).rstrip("\r\n")


def warn_if_open(path: Path) -> tuple[str, ...]:
    """Return a warning if users other than the owner may read the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return ()
    return (f"{path} holds secrets but users other than its owner can read it",) if mode & 0o077 else ()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        copied = "" if path.exists() else "; copy the file to this machine, or name another one"
        raise ConfigError(f"cannot read {path}: {why}{copied}") from error
