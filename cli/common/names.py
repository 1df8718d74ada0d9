"""Names of servers and masters for people: `server-2` in a local cluster, else `host:port`; and the reverse lookup."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Sequence

from cli.common.errors import CliError, NotFoundError
from cli.common.local import LocalCluster, local_uuids
from regions.records.model import Incarnation, MasterRecord, ServerRecord

#: Characters of a uuid that are shown.
_UUID_SHOWN = 8
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class Names:
    """Short names for the servers of one cluster, including servers that are gone."""

    def __init__(self, servers: Sequence[ServerRecord], local: LocalCluster | None) -> None:
        self._servers = list(servers)
        self._local = {one.address: one.name for one in local.daemons()} if local is not None else {}
        #: Servers of a local cluster have names also while they are dead.
        self._by_uuid = {} if local is None else local_uuids(local)
        self._by_uuid |= {server.uuid: self.of_address(server.host, server.port) for server in servers}

    def learn(self, server: ServerRecord) -> None:
        """Add a server that has registered."""
        self._servers = [one for one in self._servers if one.uuid != server.uuid] + [server]
        self._by_uuid[server.uuid] = self.of_address(server.host, server.port)

    def remember(self, uuid: str, address: str) -> None:
        """Add a server or master that is not known to be alive and had `address`.

        Another server may have the name by now, because a server that starts with an empty directory gets a new uuid.
        """
        if uuid not in self._by_uuid and address.rpartition(":")[2].isdigit():
            name = self.at(address)
            is_taken = name in self._by_uuid.values()
            self._by_uuid[uuid] = f"{name} (former, {uuid[:_UUID_SHOWN]})" if is_taken else name

    def knows(self, uuid: str) -> bool:
        """Return True if the server with this uuid has a name."""
        return uuid in self._by_uuid

    def uuids(self, text: str) -> list[str]:
        """Return the uuids with this name or uuid prefix, live or not."""
        return sorted(uuid for uuid, name in self._by_uuid.items() if text == name or (text and uuid.startswith(text)))

    def in_text(self, text: str) -> str:
        """Replace the uuids in a text by names."""
        for uuid, name in self._by_uuid.items():
            if uuid in text:
                text = re.sub(rf"{re.escape(uuid)}(@\d+)?", name, text)
        return text

    def by_address(self) -> dict[str, str]:
        """Return the names of a local cluster's daemons by address."""
        return dict(self._local)

    def in_sentence(self, text: str) -> str:
        """Replace the uuids in a text by names. Shorten the uuids of unknown servers as in tables."""
        return _UUID.sub(lambda found: self.of_uuid(found[0]), self.in_text(text))

    @staticmethod
    def uuids_in(text: str) -> list[str]:
        """Return the uuids in a text."""
        return _UUID.findall(text)

    def of_address(self, host: str, port: int) -> str:
        """Return `server-2`, or `host:port` outside of a local cluster."""
        return self.at(f"{host}:{port}")

    def at(self, address: str) -> str:
        """Return the name of the daemon at `host:port`; the address itself outside of a local cluster."""
        return self._local.get(address, address)

    def of_master(self, master: MasterRecord) -> str:
        """Return `master-1`, or `host:port`."""
        return self.of_address(master.host, master.port)

    def of_uuid(self, uuid: str) -> str:
        """Return the name of the server with this uuid; a prefix of the uuid if it was never seen alive."""
        return self._by_uuid.get(uuid, uuid[:_UUID_SHOWN])

    def of(self, incarnation: Incarnation | None) -> str:
        """Return the name of a server's incarnation; "" for None."""
        return "" if incarnation is None else self.of_uuid(incarnation.uuid)

    def find(self, text: str) -> ServerRecord:
        """Return the live server with this name, `host:port`, or uuid prefix.

        Raise NotFoundError that lists the live servers, CliError if several match.
        """
        fits = [
            one
            for one in self._servers
            if text in (self._by_uuid[one.uuid], f"{one.host}:{one.port}") or (text and one.uuid.startswith(text))
        ]
        if len(fits) == 1:
            return fits[0]
        live = ", ".join(sorted(self._by_uuid[one.uuid] for one in self._servers)) or "none"
        if not fits:
            raise NotFoundError(f"no live server {text!r}", f"Live servers: {live}.")
        raise CliError(f"{text!r} matches {len(fits)} servers", "Give more of the uuid, or host:port.")


def who_runs() -> str:
    """Return the user and the host that run this command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
