"""The file with the latest good value of a followed znode, for starts while the store is away."""

from __future__ import annotations

from pathlib import Path

from twisted.logger import Logger

from coord.errors import ConfigError
from coord.security.making import write_private

log = Logger()


class KeptValue:
    """A value in a private file, which is written only if the value differs."""

    def __init__(self, file: Path, what: str) -> None:
        """`what` is the name of the value in log lines, such as "the grants"."""
        self.file = file
        self._what = what
        self._data: bytes | None = None

    def read(self) -> bytes:
        """Return the value that an earlier process saved. Raise OSError."""
        self._data = self.file.read_bytes()
        return self._data

    def keep(self, data: bytes) -> None:
        """Write a value. A failure is logged: only a start while the store is away needs the file."""
        if data == self._data:
            return
        try:
            write_private(self.file, data)
            self._data = data
        except ConfigError as error:
            log.warn("could not keep {what}: {error}", what=self._what, error=error)
