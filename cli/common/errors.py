"""Errors for the user: one clear line each, and the exit status for scripts.

`ExitStatus` and the two tables below it are the only place that defines a status. `rk --help` and docs/exit-codes.md
are generated from them, and no command ends with another number.
"""

from __future__ import annotations

import enum
from typing import Final


class ExitStatus(enum.IntEnum):
    """Exit status of a command."""

    OK = 0
    REFUSED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    FORBIDDEN = 5
    DIFFERENT = 6
    FAULT = 70
    INTERRUPTED = 130


#: The meaning of every status: in few words, and for the page.
MEANINGS: Final[dict[ExitStatus, tuple[str, str]]] = {
    ExitStatus.OK: ("success", "Done, or the check passed."),
    ExitStatus.REFUSED: (
        "refused, or a check failed",
        "The cluster, a file or a directory is in a state that forbids the request (the name is taken, the directory"
        " is in use, the answer to a confirmation was not yes), or the command checked something and found it wrong.",
    ),
    ExitStatus.USAGE: (
        "wrong command line",
        "An argument, an option, a variable, the configuration file or a file that was named as input is wrong or"
        " missing. The same line is wrong on every cluster; nothing was changed.",
    ),
    ExitStatus.UNREACHABLE: (
        "nothing answers",
        "No cluster, no store, no master or no server answered in time. A change may have been made if the message"
        " says so.",
    ),
    ExitStatus.NOT_FOUND: (
        "not found",
        "The cluster answered, and has no table, region, row, server, plan or znode of this name; or there is no"
        " backup, plan, node or context of this name here.",
    ),
    ExitStatus.FORBIDDEN: (
        "not allowed",
        "The cluster knows who asks, and this user has no grant for the request; nothing was done. The message names"
        " the grant to ask an admin for.",
    ),
    ExitStatus.DIFFERENT: (
        "there are differences",
        "With --detailed-exitcode: the comparison was made, and something would change. Nothing was changed.",
    ),
    ExitStatus.FAULT: ("internal error", "A fault of rk itself; `RK_DEBUG=1` shows the traceback."),
    ExitStatus.INTERRUPTED: ("interrupted", "Ctrl-C."),
}

_CHECK: Final = "the verdict is degraded: clients are served, but something is missing"
_REFUSING: Final = "the verdict is unavailable: some clients are refused"
#: Meanings of statuses for commands that check something: command (or group), status, meaning.
MEANINGS_OF_COMMANDS: Final[dict[str, dict[ExitStatus, str]]] = {
    "up": {ExitStatus.REFUSED: "a daemon ended and could not be started again, or the directory is in use"},
    "drill": {ExitStatus.REFUSED: "an invariant was broken, a promise was not kept, or the drill could not run"},
    "simulate": {ExitStatus.REFUSED: "a run broke an invariant, or a replay differs from its file"},
    "status": {ExitStatus.REFUSED: f"with --check: {_CHECK}", ExitStatus.USAGE: f"with --check: {_REFUSING}"},
    "health": {ExitStatus.REFUSED: _CHECK, ExitStatus.USAGE: _REFUSING},
    "secure": {
        ExitStatus.REFUSED: "some access lists could not be changed, or a daemon without the credential hinders it"
    },
    "fsck": {ExitStatus.REFUSED: "something is unavailable or inconsistent, or a step of --fix failed"},
    "audit": {ExitStatus.REFUSED: "there are alarms"},
    "debug tablet": {ExitStatus.REFUSED: "a file is damaged, or the server runs"},
    "unstick": {ExitStatus.REFUSED: "the region is still stuck"},
    "get": {ExitStatus.NOT_FOUND: "no such row, or no such table"},
    "put": {ExitStatus.REFUSED: "the condition did not hold, or the request was rejected; nothing was changed"},
    "delete": {ExitStatus.REFUSED: "the condition did not hold, or the request was rejected; nothing was changed"},
    "plan": {ExitStatus.REFUSED: "the plan was aborted, is out of date, or replicas are elsewhere than it wanted"},
    "plan diff": {ExitStatus.DIFFERENT: "with --detailed-exitcode: the two placements differ"},
    "backup create": {ExitStatus.REFUSED: "failed, and nothing is left; DIR is in use, or a table is disabled"},
    "backup verify": {ExitStatus.REFUSED: "damaged, or unfinished"},
    "backup restore": {ExitStatus.REFUSED: "a file is damaged, the table exists, or the rows differ"},
    "coord status": {ExitStatus.REFUSED: "a node does not answer or reports an error"},
    "coord verify": {ExitStatus.REFUSED: "damage or a difference, or the node runs"},
    "coord check-trace": {ExitStatus.REFUSED: "a rule of Raft was violated"},
    "server run": {ExitStatus.REFUSED: "the server could not listen, lost its directory, or failed"},
}


class CliError(Exception):
    """A failure that the user can act on: what happened and where, then a remedy.

    `message` is one line; `hint` is the line below it, a command where possible.
    """

    exit_code: ExitStatus = ExitStatus.REFUSED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UnreachableError(CliError):
    """Raised if nothing answers at an address."""

    exit_code = ExitStatus.UNREACHABLE


class NotFoundError(CliError):
    """Raised if a named table, region or server does not exist."""

    exit_code = ExitStatus.NOT_FOUND


class ForbiddenError(CliError):
    """Raised if this command's user has no grant for the request; nothing was done."""

    exit_code = ExitStatus.FORBIDDEN


class UsageFaultError(CliError):
    """Raised if the command line, or an input file that it names, is wrong for any cluster; nothing was changed."""

    exit_code = ExitStatus.USAGE
