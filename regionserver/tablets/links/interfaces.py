"""Reports of a server's links to the host of its tablets."""

from __future__ import annotations

from typing import Protocol

from regionserver.tablets.host.envelope import BeatFrame, TurnFrame


class LinkEvents(Protocol):
    """Events of the links to other servers. All calls come on the reactor's thread.

    `TabletLinks.send` and `TabletLinks.flush` may report a lost peer before they return.
    """

    def peer_introduced(self, server: str, start_code: int) -> None:
        """Handle a new process of `server`: its first hello, or its first hello after a loss."""
        ...

    def peer_frame(self, server: str, frame: TurnFrame | BeatFrame) -> None:
        """Handle a frame that `server` sent in its own name to this server, with its present start code.

        Raise RemoteProtocolError to close the link.
        """
        ...

    def peer_lost(self, server: str, start_code: int) -> None:
        """Handle the end of a connection with that process, in either direction. Once for each introduction."""
        ...
