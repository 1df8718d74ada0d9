"""Drills cut a region server off from the other members of its tablets: POST /cut and /heal (`coord.peers.partition`).

Clients, the store and masters still reach the server. The actions exist only with `--drill-links`, and each request
needs the token of `admin.json` in the server's data directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coord.admin_token import ADMIN_FILE, admin_json, read_admin_json, token_or_new
from coord.durable import write_durably
from coord.env_os import OsEntropy
from coord.errors import ConfigError
from coord.http import Action
from coord.peers.partition import CUT_PATH, HEAL_PATH, LosingLinks, PartitionEndpoint


class LinkCuts:
    """The actions of the admin port. The links come later: when the server has joined its cluster."""

    def __init__(self, reactor: Any, data_dir: Path, links: Callable[[], LosingLinks | None]) -> None:
        """`links` returns the server's links, None before they exist."""
        self._reactor = reactor
        self._file = data_dir / ADMIN_FILE
        self._links = links
        self._token = b""
        self._endpoint: PartitionEndpoint | None = None

    def actions(self, address: tuple[str, int]) -> Mapping[bytes, Action]:
        """Write `admin.json` with the address of the admin port and a token, and return the actions by path.

        A token stays valid over restarts. Raise ConfigError if the file cannot be written.
        """
        try:
            token = token_or_new(read_admin_json(self._file), OsEntropy())
            write_durably(self._file, admin_json(address, token), mode=0o600)
        except OSError as error:
            raise ConfigError(f"{self._file} cannot be written: {error.strerror}") from error
        self._token = token.encode()
        return {CUT_PATH: self._cut, HEAL_PATH: self._heal}

    def _cut(self, request: Any) -> None:
        endpoint = self._found(request)
        if endpoint is not None:
            endpoint.answer_cut(request)

    def _heal(self, request: Any) -> None:
        endpoint = self._found(request)
        if endpoint is not None:
            endpoint.answer_heal(request)

    def _found(self, request: Any) -> PartitionEndpoint | None:
        """Return the endpoint; answer 503 and return None before there are links."""
        links = self._links()
        if self._endpoint is None and links is not None:
            self._endpoint = PartitionEndpoint(self._reactor, links, self._token)
        if self._endpoint is None:
            request.setResponseCode(503)
            request.setHeader(b"content-type", b"text/plain; charset=utf-8")
            request.write(b"This server has no links yet: it has not joined its cluster.\n")
            request.finish()
        return self._endpoint
