"""`--admin-hide-keys`: the page shows names in place of the keys of regions and rows.

A name is a hash with a secret of this process, so guessed keys cannot be verified by hashing them. Equal keys have
equal names until the master starts again. Texts for people quote keys, so in texts everything between quotes is left
out.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from regions.page.parts import PageDelta, PagePart

#: Fields whose value is a key of a region's range.
_FIELDS: Final = ("start_key", "end_key")
_QUOTED: Final = re.compile(r"""(?<!\w)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


class KeyHider:
    """See the module docstring."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def name(self, key: str) -> str:
        """Return the name of a key. The empty key is the end of a table's range and stays empty."""
        if not key:
            return ""
        return "key-" + hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=5, key=self._secret).hexdigest()

    def part(self, part: PagePart) -> PagePart:
        """Return a part of the snapshot with names."""
        return msgspec.structs.replace(part, start=[self.name(one) for one in part.start])

    def delta(self, delta: PageDelta) -> PageDelta:
        """Return a delta with names."""
        return delta if delta.new is None else msgspec.structs.replace(delta, new=self.part(delta.new))

    def value(self, value: object) -> object:
        """Return the JSON value with names in place of keys, and without the quoted parts of its texts."""
        return self._hidden(msgspec.to_builtins(value, str_keys=True))

    def _hidden(self, value: object) -> object:
        if isinstance(value, str):
            return _QUOTED.sub("'…'", value)
        if isinstance(value, dict):
            return {
                name: self.name(one) if name in _FIELDS and isinstance(one, str) else self._hidden(one)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._hidden(one) for one in value]
        return value
