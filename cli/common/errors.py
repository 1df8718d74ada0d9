"""Errors for the user: one clear line each, and the exit status for scripts.

Exit statuses (also in `rk --help`):

    0    success; a check or drill passed
    1    a check or drill failed, or the cluster rejected the request
    2    the command line is wrong; `rk health` and `rk status --check`: something is unavailable (1: degraded)
    3    nothing answers at the given address
    4    the named object does not exist
    70   internal error of rk (RK_DEBUG=1 shows the traceback)
    130  interrupted
"""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_NOT_FOUND: Final = 4
EXIT_FAULT: Final = 70
EXIT_INTERRUPTED: Final = 130


class CliError(Exception):
    """A failure that the user can act on: what happened and where, then a remedy.

    `message` is one line; `hint` is the line below it, a command where possible.
    """

    exit_code: int = EXIT_REFUSED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UnreachableError(CliError):
    """Raised if nothing answers at an address."""

    exit_code = EXIT_UNREACHABLE


class NotFoundError(CliError):
    """Raised if a named table, region or server does not exist."""

    exit_code = EXIT_NOT_FOUND


class UsageFaultError(CliError):
    """Raised if the options contradict each other or the machine; nothing was started or changed."""

    exit_code = EXIT_USAGE
