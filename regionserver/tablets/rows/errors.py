"""What can be wrong with a tablet's rows, and what the server does then.

RowsError
  RowsFailed    the rows are damaged, lost, or cannot be made durable: this tablet is FAILED, all others go on
  RowsFull      the disk or the file is full: nothing was changed; the same entries can be applied later
  RowsTooNew    a later build wrote the files: this server does not start
  RowsClosed    the rows were closed; nothing was done
"""
# ruff: noqa: N818 - the names say what has happened

from __future__ import annotations

from coord.errors import CoordError


class RowsError(CoordError):
    """Something is wrong with a tablet's rows. The message names the file."""


class RowsFailed(RowsError):
    """The rows cannot be used. The log is sound, so the leader copies the tablet anew under the same number."""


class RowsFull(RowsError):
    """There is no room. Nothing was changed, and nothing that was acknowledged is lost."""


class RowsTooNew(RowsError):
    """A later build wrote this file."""


class RowsClosed(RowsError):
    """The rows were closed before the request began."""
