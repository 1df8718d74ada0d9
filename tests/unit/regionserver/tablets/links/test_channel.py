"""Connections for copies: whole frames in few calls, and ends that are noticed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from regionserver.tablets.links import channel as channels
from regionserver.tablets.links.channel import Channel, ChannelLost

KIND = 7
LONG = bytes(range(256)) * 20_000


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dialed = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    # The listener's reactor passes a socket on that does not block.
    accepted.setblocking(False)
    ends = Channel(accepted, None, "server a"), Channel(dialed, None, "server b")
    yield ends
    for end in ends:
        end.close()


def test_long_and_short_frames_arrive_whole(pair: tuple[Channel, Channel]) -> None:
    source, destination = pair
    for end in pair:
        end.established()
    frames = [b"short", LONG, b"", LONG[1:]]

    def send() -> None:
        for frame in frames:
            source.send(KIND, frame[:3], memoryview(frame)[3:])

    thread = threading.Thread(target=send)
    thread.start()
    found = []
    for _ in frames:
        kind, body = destination.receive()
        assert kind == KIND
        found.append(bytes(body))
    thread.join()
    assert found == frames


def test_silence_ends_a_connection(pair: tuple[Channel, Channel], monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends nothing, or reads nothing, does not keep a thread of this server busy."""
    monkeypatch.setattr(channels, "IDLE_S", 0.2)
    source, destination = pair
    for end in pair:
        end.established()
    with pytest.raises(ChannelLost, match=r"server b: nothing was sent or taken for 0\.2 s"):
        destination.receive()
    with pytest.raises(ChannelLost, match=r"server a: nothing was sent or taken for 0\.2 s"):
        source.send(KIND, *[LONG] * 8)


def test_a_thread_that_waits_is_woken(pair: tuple[Channel, Channel]) -> None:
    _, destination = pair
    destination.established()
    ends: list[Exception] = []

    def receive() -> None:
        try:
            destination.receive()
        except ChannelLost as error:
            ends.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    destination.abort()
    thread.join(20)
    assert [str(one) for one in ends] == ["server b has closed the connection"]
