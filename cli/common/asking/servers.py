"""Requests that a command sends to region servers directly: to one server, or to many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from cli.common.waiting import limit_s, soon_after_timeout, waiting
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import Code, RpcError
from regions import messages
from regions.records.model import ServerRecord

T = TypeVar("T", bound=msgspec.Struct)
Answer = TypeVar("Answer")

#: Servers that one command asks at the same time.
_ASKED_AT_ONCE: Final = 32
#: Number of servers without an answer after which a command asks no further server. A command must end soon, even if
#: many registrations are dead.
_SILENT_MAX: Final = 2 * _ASKED_AT_ONCE


def is_alive(server: ServerRecord, timeout_s: float = 1.5) -> bool:
    """Return True if a server's process answers now. Its session may outlive the process by seconds."""
    try:
        ask_server(server, messages.GetServerStatus(), messages.ServerStatus, timeout_s)
    except RpcError:
        return False
    return True


def ask_server(server: ServerRecord, message: msgspec.Struct, expect: type[T], timeout_s: float = 5.0) -> T:
    """Send one request to one region server. Raise RpcError. --timeout can only shorten `timeout_s`."""
    timeout_s = min(timeout_s, limit_s(timeout_s))
    with waiting(f"the region server at {server.host}:{server.port}"):
        return call_blocking((server.host, server.port), message, timeout_s, expect=expect)


def ask_servers(servers: Iterable[ServerRecord], ask: Callable[[ServerRecord], Answer]) -> dict[str, Answer | None]:
    """Ask many servers at once. Return the answer of `ask` for each server by uuid, or None if `ask` raised RpcError.

    Registrations may be dead or forged. After _SILENT_MAX servers without an answer, no further server is asked.
    """
    asked = list(servers)
    silent: list[str] = []

    def answer(server: ServerRecord) -> Answer | None:
        if len(silent) < _SILENT_MAX:
            try:
                return ask(server)
            except RpcError as error:
                if error.code in (Code.UNREACHABLE, Code.TIMEOUT):
                    silent.append(server.uuid)
        return None

    words = f"answers of {len(asked)} region servers"
    with waiting(words, soon_after_timeout()), ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return dict(zip([one.uuid for one in asked], pool.map(answer, asked), strict=True))
