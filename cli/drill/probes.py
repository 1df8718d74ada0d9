"""Requests for a frozen server's old openings, over a connection that the server has accepted before.

The requests are sent as bytes into a plain socket: a client would wait for replies, and only the server itself must be
able to reject them.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from typing import Final

import msgspec

from cli.common.errors import CliError
from cli.drill.load import KEYS, key_in
from coord.rpc.blocking import prove, unseal
from coord.rpc.wire import (
    PREAMBLE,
    Code,
    Failed,
    Request,
    RpcError,
    RpcFrameReader,
    StreamError,
    encode_body,
    encode_frame,
)
from regions.records.model import RegionRecord, ServerRecord
from regions.records.partitioning import place
from regionserver.kv.messages import KvChange, KvRead, KvWrite
from regionserver.request_gate import Place

#: Result of a request that the server executed.
ANSWERED: Final = "answered"
_CONNECT_TIMEOUT_S: Final = 5.0
_READ_BYTES: Final = 256 * 1024
_WRITER: Final = "rk-drill-server-freeze"


class ProbeTarget(msgspec.Struct, frozen=True):
    """A region of the server, and the opening that the requests name."""

    table: str
    region: RegionRecord
    place: Place

    @property
    def key(self) -> str:
        """Return a key in the region that the load does not use."""
        return key_in(self.region, KEYS)

    @property
    def placed(self) -> str:
        """Return the key as it is stored."""
        return place(self.key, self.region.hash_buckets)


class Probes:
    """One blocking connection to one server, for one thread."""

    def __init__(self, server: ServerRecord, targets: list[ProbeTarget]) -> None:
        """Connect, and check that the server answers a read of the first target. Raise CliError."""
        self.targets = targets
        #: (kind, region) of each request by number.
        self._asked: dict[int, tuple[str, str]] = {}
        self._numbers = itertools.count(1)
        self._reader = RpcFrameReader()
        where = f"{server.host}:{server.port}"
        try:
            self._socket = socket.create_connection((server.host, server.port), _CONNECT_TIMEOUT_S)
            self._channel = prove(self._socket, time.monotonic() + _CONNECT_TIMEOUT_S, server.host)
            self._send(PREAMBLE)
            if targets:
                self._ask("read", targets[0], KvRead(targets[0].place, [targets[0].placed]))
                found = self.answers(_CONNECT_TIMEOUT_S)
                if [word for _, _, word in found] != [ANSWERED]:
                    raise CliError(f"{where} did not answer before the freeze: {found}")
        except (OSError, StreamError) as error:
            raise CliError(f"{where} did not answer before the freeze: {error}") from error

    def send(self) -> None:
        """Send a read and a write for each target at once. Raise CliError."""
        try:
            for target in self.targets:
                self._ask("read", target, KvRead(target.place, [target.placed]))
                change = KvChange(target.placed, b"stale")
                self._ask("write", target, KvWrite(target.place, [change], _WRITER, len(self._asked)))
        except OSError as error:
            raise CliError(f"the frozen server accepts no requests: {error}") from error

    def _ask(self, kind: str, target: ProbeTarget, message: msgspec.Struct) -> None:
        number = next(self._numbers)
        self._asked[number] = (kind, target.region.region_id)
        self._socket.settimeout(_CONNECT_TIMEOUT_S)
        self._send(encode_frame(Request(number, encode_body(message))))

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data if self._channel is None else self._channel.send(data))

    def answers(self, timeout_s: float) -> list[tuple[str, str, str]]:
        """Return (kind, region, result) of every request without a reply so far; the result of a rejection is its code.

        A request without a reply gets CONNECTION_LOST or TIMEOUT.
        """
        deadline_s = time.monotonic() + timeout_s
        found: list[tuple[str, str, str]] = []
        left, self._asked = self._asked, {}
        why = Code.TIMEOUT
        while left and (remaining_s := deadline_s - time.monotonic()) > 0:
            self._socket.settimeout(remaining_s)
            try:
                data = self._socket.recv(_READ_BYTES)
                payloads = list(self._reader.feed(unseal(self._channel, data)))
            except TimeoutError:
                break
            except (OSError, StreamError, RpcError):
                data, payloads = b"", []
            if not data:
                why = Code.CONNECTION_LOST
                break
            for payload in payloads:
                kind, region = left.pop(payload.id)
                found.append((kind, region, payload.code if isinstance(payload, Failed) else ANSWERED))
        found += [(kind, region, why) for kind, region in left.values()]
        return found

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._socket.close()
