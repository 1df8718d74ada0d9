"""Errors of a tablet's rows, and the server's reaction.

RowsError
  RowsFailed    the rows are damaged, lost, or cannot be made durable: this tablet is FAILED, all others continue
  RowsFull      the disk or the file is full: nothing was changed; the same entries can be applied later
  RowsTooNew    a later build wrote the files: this server does not start
  RowsClosed    the rows are closed; nothing was done
"""
# ruff: noqa: N818 - the names describe the event

from __future__ import annotations

from coord.errors import CoordError


class RowsError(CoordError):
    """An error of a tablet's rows. The message names the file."""


class RowsFailed(RowsError):
    """The rows cannot be used. The log is intact, so the leader copies the tablet again under the same number."""


class RowsFull(RowsError):
    """The disk or the file is full. Nothing was changed, and no acknowledged write is lost."""


class RowsTooNew(RowsError):
    """A later build wrote this file."""


class RowsClosed(RowsError):
    """The rows were closed before the request began."""
