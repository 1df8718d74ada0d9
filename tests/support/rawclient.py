"""A raw client on a blocking socket, which can send bytes that no proper client would send."""

from __future__ import annotations

import socket
import ssl
import struct

from coord.wire import records as r


class RawClient:
    """One TCP connection. It sends only what the test asks for: no pings, no close."""

    def __init__(
        self, address: str, *, timeout_s: float = 60, source: str = "", tls: ssl.SSLContext | None = None
    ) -> None:
        """`source` is the client's own IP address, if it is not to be the machine's choice."""
        host, _, port = address.partition(":")
        self.sock = socket.create_connection((host, int(port)), timeout_s, (source, 0) if source else None)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=host)
        self.sock.settimeout(timeout_s)
        self._xid = 0

    def hello(self, request: r.ConnectRequest) -> r.ConnectResponse | None:
        """Do the handshake. Return its reply, None if the server closes instead of answering."""
        record = r.encode_connect_request(request)
        self.sock.sendall(struct.pack("!i", len(record)) + record)
        answer = self.frame()
        return None if answer is None else r.decode_connect_response(answer, 0, len(answer))

    def ask(self, opcode: int, body: bytes) -> tuple[int, bytes] | None:
        """Return (err, reply body) of a request, without events; None if the server closes instead."""
        self._xid += 1
        self.sock.sendall(r.encode_request_frame(self._xid, opcode, body))
        return self.answer()

    def answer(self) -> tuple[int, bytes] | None:
        """Return (err, body) of the next reply, without events; None when the server has closed."""
        while (frame := self.frame()) is not None:
            xid, _, err = r.decode_reply_header(frame, 0, len(frame))
            if xid != r.XID_NOTIFICATION:
                return err, frame[r.REPLY_HEADER_BYTES :]
        return None

    def frame(self) -> bytes | None:
        """Return the next whole frame; None when the server has closed the connection."""
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack("!i", head)[0])

    def is_closed(self) -> bool:
        """Wait for the server to close without a further byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                chunk = self.sock.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            data += chunk
        return data

    def close(self) -> None:
        """Close the socket; the session lives on until it expires."""
        self.sock.close()
