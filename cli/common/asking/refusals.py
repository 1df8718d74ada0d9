"""Messages for requests that a master or a server has rejected: the fault, and what to do."""

from __future__ import annotations

import shlex

import msgspec

from cli.common.errors import CliError, ForbiddenError, NotFoundError
from coord.rpc.wire import RpcError
from regions import messages


def refusal(error: RpcError, message: msgspec.Struct) -> CliError:
    """Return the error for the user after a master or server rejected a call."""
    text = error.message or error.code
    if error.code == messages.NOT_FOUND:
        return NotFoundError(text, error.hint or _way_out(error.code, message))
    if error.code == messages.FORBIDDEN:
        return forbidden(text)
    if error.is_outcome_unknown:
        return CliError(
            f"{type(message).__name__}: {text}",
            error.hint or "It may have been executed: check before you repeat it.",
        )
    return CliError(text, error.hint or _way_out(error.code, message))


def forbidden(text: str) -> ForbiddenError:
    """Return the error for a user without the grant: the missing role, and the grant to request."""
    what, colon, remedy = text.partition(": ask ")
    return ForbiddenError(what, f"Ask {remedy}." if colon else "")


def _way_out(code: str, message: msgspec.Struct) -> str:
    """Return what the user can do after a rejection, "" if unknown."""
    table = getattr(message, "table", "")
    name = getattr(message, "name", None) or table
    if code == messages.WRONG_CLUSTER:
        return (
            "Check --masters and --store. --cluster-id names the intended cluster if neither a store nor the local"
            " cluster in --data-dir determines it."
        )
    if code == messages.NOT_FOUND and table:
        return "`rk table list` shows the tables."
    if code == messages.NOT_FOUND and hasattr(message, "region_id"):
        return "`rk region list` shows the regions."
    if code == messages.BAD_REQUEST and hasattr(message, "region_id"):
        return f"`rk why {message.region_id}` shows where the region is, and what would help."
    if code == messages.ALREADY_EXISTS:
        return f"Choose another name; `rk table show {shlex.quote(name)}` shows the existing table."
    if code == messages.TIMED_OUT:
        return (
            f"Only the waiting has ended: the masters go on.\n{_where_to_look(message)}; --wait SECONDS waits longer."
        )
    return ""


def received(message: msgspec.Struct) -> str:
    """Return a sentence about a request without an answer: what the masters do with the request, and how to follow
    them."""
    return f"if a master has received the request, the masters go on: {_where_to_look(message)}."


def _where_to_look(message: msgspec.Struct) -> str:
    """Return which commands show the progress of work for which this command no longer waits."""
    what = getattr(message, "table", "") or getattr(message, "name", None) or getattr(message, "region_id", "")
    command = f"rk why {shlex.quote(what)}" if what else "rk status"
    return f"`{command}` shows what is missing, `rk watch` each step"
