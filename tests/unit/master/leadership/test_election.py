"""The election: the race for /active and the epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ConnectionRefusedError as Refused
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from master.leadership.active_probe import REFUSED_PAUSE_S
from master.leadership.election import Election
from master.settings import MasterSettings
from regions.records.model import ActiveRecord
from regions.records.znodes import Layout, decode_active, encode
from tests.unit.master.fake_store import FakeStore
from tests.unit.master.leadership.test_active_probe import accepted

LAYOUT = Layout("/rk")


class Myself:
    """An identity without a directory."""

    def __init__(self, uuid: str = "me", start_code: int = 5) -> None:
        self.uuid = uuid
        self.start_code = start_code


class ElectionTest(SynchronousTestCase):
    """One master against a store; the test releases the replies."""

    def setUp(self) -> None:
        self.store = FakeStore()
        for path in LAYOUT.parents():
            self.store.put(path)
        self.store.put(LAYOUT.epoch, b"", 3)
        settings = MasterSettings(store="s:1", data_dir=Path("unused"), host="h", port=9)
        store: Any = self.store
        myself: Any = Myself()
        self.reactor: Any = MemoryReactorClock()
        self.election = Election(self.reactor, store, LAYOUT, settings, myself)
        self.races = 0

    def win(self) -> Any:
        def racing() -> None:
            self.races += 1

        return ensureDeferred(self.election.win(lambda: 1, racing))

    def test_a_master_takes_a_free_place_and_raises_the_epoch(self) -> None:
        won = self.win()
        self.store.answer()
        assert self.successResultOf(won) == 4
        active = decode_active(self.store.nodes[LAYOUT.active][0])
        assert (active.uuid, active.epoch) == ("me", 4)

    def test_a_standby_waits_until_the_place_is_free(self) -> None:
        self.store.put(LAYOUT.active, encode(ActiveRecord("other", "o", 1, 1, 3)), 0, 99)
        won = self.win()
        self.store.answer()
        self.assertNoResult(won)
        assert self.election.active is not None
        assert self.election.active.uuid == "other"
        self.store.delete(LAYOUT.active)
        self.store.answer()
        assert self.successResultOf(won) == 4
        assert self.races == 2

    def test_a_standby_takes_the_place_of_a_dead_process_at_once(self) -> None:
        """MF-01: no process listens there any more, so the standby does not wait for the session to end."""
        self.store.put(LAYOUT.active, encode(ActiveRecord("other", "o", 1, 1, 3)), 0, 99)
        won = self.win()
        self.store.answer()
        self.lose_sight()
        self.store.answer()
        assert self.successResultOf(won) == 4

    def test_a_place_that_another_master_took_meanwhile_is_not_deleted(self) -> None:
        self.store.put(LAYOUT.active, encode(ActiveRecord("other", "o", 1, 1, 3)), 0, 99)
        won = self.win()
        self.store.answer()
        self.store.nodes[LAYOUT.active] = (encode(ActiveRecord("third", "t", 1, 7, 4)), 0, 98)
        self.lose_sight()
        self.store.answer()
        self.assertNoResult(won)
        assert decode_active(self.store.nodes[LAYOUT.active][0]).uuid == "third"

    def lose_sight(self) -> None:
        """Close the connection to the active master, and refuse new ones."""
        accepted(self.reactor).connectionLost()
        for pause_s in (0, REFUSED_PAUSE_S):
            self.reactor.advance(pause_s)
            self.reactor.tcpClients[-1][2].clientConnectionFailed(None, Failure(Refused()))

    def test_a_master_removes_its_own_leftover_of_an_earlier_start(self) -> None:
        """The lock on the data directory proves that its owner is dead."""
        self.store.put(LAYOUT.active, encode(ActiveRecord("me", "h", 9, 4, 3)), 0, 55)
        won = self.win()
        self.store.answer()
        assert self.successResultOf(won) == 4
        assert self.store.nodes[LAYOUT.active][2] == self.store.session_id

    def test_a_master_whose_session_survived_begins_a_new_epoch(self) -> None:
        """Its tenure ended without the session ending."""
        first = self.win()
        self.store.answer()
        second = self.win()
        self.store.answer()
        assert (self.successResultOf(first), self.successResultOf(second)) == (4, 5)

    def test_a_lost_race_for_the_epoch_is_repeated(self) -> None:
        """A former master's late write of its own epoch came between; this master's epoch must be higher."""
        won = self.win()
        self.store.answer(2)  # /active created, /epoch read
        self.store.put(LAYOUT.epoch, b"", 4)
        self.store.answer()
        assert self.successResultOf(won) == 5

    def test_a_master_that_lost_its_place_before_its_epoch_stands_again(self) -> None:
        """An operator deleted /active, and another master took it: its epoch stands."""
        for answered in (1, 2, 3, 4):
            self.setUp()
            won = self.win()
            self.store.answer(answered)
            data, version, _ = self.store.nodes[LAYOUT.epoch]
            self.store.nodes[LAYOUT.active] = (encode(ActiveRecord("third", "t", 1, 7, version + 1)), 0, 98)
            self.store.put(LAYOUT.epoch, data, version + 1)
            self.store.answer()
            self.assertNoResult(won)
            assert self.store.nodes[LAYOUT.epoch][1] == version + 1
            assert decode_active(self.store.nodes[LAYOUT.active][0]).uuid == "third"
            assert self.races == 2

    def test_a_registration_replaces_that_of_an_earlier_session(self) -> None:
        path = LAYOUT.master("me")
        self.store.put(path, b"old", 0, 55)
        done = ensureDeferred(self.election.register())
        self.store.answer()
        self.successResultOf(done)
        assert self.store.nodes[path][2] == self.store.session_id

    def test_a_release_does_not_delete_another_masters_place(self) -> None:
        self.store.put(LAYOUT.active, b"", 0, 99)
        done = ensureDeferred(self.election.release())
        self.store.answer()
        self.successResultOf(done)
        assert LAYOUT.active in self.store.nodes

    def test_a_master_that_leaves_makes_room_for_another(self) -> None:
        self.store.put(LAYOUT.active, b"", 0, self.store.session_id)
        self.election.leave()
        self.store.answer()
        assert LAYOUT.active not in self.store.nodes
