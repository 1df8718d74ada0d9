"""Removal of data that a bundle must not contain: secrets, and on request the keys of regions and rows.

Pure except for reading files. Two rules hide a secret. Known values of secrets are replaced everywhere. And a field
with the name of a secret loses any value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

HIDDEN: Final = "(hidden)"
#: Shorter values are found by chance: a word of a log is not a secret.
_LEAST: Final = 8
_WORDS: Final = "password|passwd|secret|token|credential|authorization|store[-_]auth|store[-_]sasl|private[-_.]?key"
_NAME: Final = rf"[\w.\-]*(?:{_WORDS})[\w.\-]*"
#: A list or an object; text in quotes, even in JSON within JSON or without its end; one word, or two words of a header.
_VALUE: Final = (
    r"""\[[^\]]*\]|\{[^{}]*\}|\\+"[^"\n]*"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|"""
    r"""(?:basic|bearer|digest)\s+[^\s"']+|["'][^\s"']+|[^\s"']*[^\s"',}\]]"""
)
#: A value of such a name: after a colon or an equals sign, or as the next word or element after an option.
_NAMED: Final = re.compile(rf"""(?i)(?<![\w.\-])({_NAME})(\\*["']?\s*[:=]\s*)({_VALUE})""")
_OPTION: Final = re.compile(rf"""(?i)(?<![\w.\-])(--{_NAME})(["']?,?\s+)({_VALUE})""")
_QUOTES: Final = "\\\"'"
#: A field with such a name holds the name of a file; such a value is no secret.
_OF_FILE: Final = ("file", "path", "dir")
_NO_SECRET: Final = ("", "[]", "{}", "true", "false", "null", "None", "none")
_IN_URL: Final = re.compile(r"""(://[^/\s:@"']*:)[^/\s@"']+@""")
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_PUBLIC: Final = ("cluster", "kind", "name", "number", "user")
_FILE_BYTES_MAX: Final = 1 << 16
#: A key in a sentence stands in quotes, a range of keys in brackets; in JSON keys have fields of these names.
_QUOTED: Final = re.compile(r"'(?:[^'\\\n]|\\.)*'")
_RANGE: Final = re.compile(r"\[[^\[\]\n]*, [^\[\]\n]*?\)")
_FIELD: Final = re.compile(r'("(?:start_key|end_key|start|end|key|at|split|splits|bounds)":\s*)"(?:[^"\\]|\\.)*"')


class Hider:
    """Takes secrets, and keys if wanted, out of texts."""

    def __init__(self, secrets: Iterable[str], *, keys: bool = False) -> None:
        """`secrets`: values that are known to be secret. `keys`: hide keys as well."""
        longest_first = sorted({one for one in secrets if len(one) >= _LEAST}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.hides_keys = keys

    def text(self, text: str) -> str:
        """Return the text with each secret replaced by HIDDEN."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _PRIVATE_KEY.sub(HIDDEN, text)
        text = _NAMED.sub(_hidden, _OPTION.sub(_hidden, text))
        text = _IN_URL.sub(rf"\g<1>{HIDDEN}@", text)
        if self.hides_keys:
            text = _FIELD.sub(rf'\g<1>"{HIDDEN}"', _RANGE.sub(f"[{HIDDEN})", _QUOTED.sub(f"'{HIDDEN}'", text)))
        return text


def _hidden(found: re.Match[str]) -> str:
    """Return name and value with the value hidden; names of files (@FILE) and other options stay."""
    name, between, value = found.groups()
    bare = value.strip(_QUOTES)
    if name.lower().endswith(_OF_FILE) or bare in (*_NO_SECRET, HIDDEN) or bare.startswith("@"):
        return found[0]
    if bare.startswith("-") and not {":", "="} & set(between):
        return found[0]
    before = value[: len(value) - len(value.lstrip(_QUOTES))]
    return f"{name}{between}{before}{HIDDEN}{before if value.endswith(before) else ''}"


def secrets_in(directories: Iterable[Path], files: Iterable[Path]) -> set[str]:
    """Return every value that is a secret in directories of credentials, and in files of one credential a line."""
    found: set[str] = set()
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            found.update(_secrets_of(path))
    for path in files:
        for line in _read(path).splitlines():
            found.update((line.strip(), line.strip().partition(":")[2]))
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""


def _secrets_of(path: Path) -> Iterator[str]:
    """Yield the secrets in a file of credentials; a certificate has none."""
    text = _read(path) if path.is_file() else ""
    if path.suffix == ".json":
        try:
            yield from _values(msgspec.json.decode(text.encode()), "")
        except ValueError:
            yield from text.split()
    elif "PRIVATE KEY" in text or "BEGIN" not in text:
        yield from (line.strip() for line in text.splitlines() if not line.startswith("-----"))


def _values(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _values(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, name)
    elif isinstance(value, str) and name not in _PUBLIC:
        yield value
