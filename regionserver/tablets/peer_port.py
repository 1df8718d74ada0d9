"""The port on which a server listens for the other members of its tablets."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from coord.durable import write_durably
from coord.errors import ConfigError
from coord.peers.stream import listening_socket

log = Logger()

#: File with the port for members, if the system chose the port. The next start takes the same port, so that members
#: find each other without the store after all of them were restarted.
PORT_FILE: Final = "peer-port"


def bind_peer_port(data_dir: Path, address: tuple[str, int]) -> socket.socket:
    """Return the listening socket for members; Port 0 means the port of the last start, or any free port.

    Raises:
        ConfigError: the address cannot be used.
    """
    host, port = address
    file = data_dir / PORT_FILE
    former = _read_port(file) if port == 0 else 0
    for wanted in dict.fromkeys((former, port)) if former else (port,):
        try:
            found = listening_socket(host, wanted)
        except OSError as error:
            if wanted == port:
                raise ConfigError(f"cannot listen on peer address {host}:{port}: {error.strerror}") from error
            log.warn("port {port} for members is in use, taking another one", port=wanted)
            continue
        break
    chosen = int(found.getsockname()[1])
    if port == 0 and chosen != former:
        try:
            write_durably(file, str(chosen).encode(), mode=0o600)
        except OSError as error:
            found.close()
            raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    return found


def _read_port(file: Path) -> int:
    """Return the port stored in a file; 0 without a file or with any other content."""
    try:
        text = file.read_bytes()[:8].decode("ascii")
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdecimal() and 0 < int(text) < 65536 else 0
