"""Notes of committed configurations: written together, at most once in a while, and never after the replica's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coord.raft.log import CommittedConfig
from coord.raft.membership import Configuration
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.members.notes import NOTES_EVERY_S, ConfigNote, ConfigNotes


class Notes:
    """Notes with a files' thread and a clock by hand."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.written: list[list[str]] = []
        self.noted: list[tuple[str, int]] = []
        self.stopped: set[str] = set()
        self.failing: set[str] = set()
        pool: Any = self
        self.notes = ConfigNotes(
            self.write,
            pool,
            lambda delay_s, function: self.timers.append((delay_s, function)),
            is_wanted=lambda tablet, _: tablet not in self.stopped,
            noted=lambda tablet, note: self.noted.append((tablet, note.config.index)),
        )

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.jobs.append((work, done))

    def write(self, metas: Sequence[ConsensusMeta]) -> list[str]:
        self.written.append([f"{meta.tablet} {meta.config_index}" for meta in metas])
        return ["the disk is broken" if meta.tablet in self.failing else "" for meta in metas]

    def put(self, tablet: str, index: int) -> None:
        configuration = Configuration([1])
        meta = ConsensusMeta(tablet, 1, 1, index, configuration.encode())
        self.notes.put(tablet, ConfigNote(None, meta, CommittedConfig(1, index, configuration)))

    def work(self) -> None:
        """Let the files' thread do what it was given."""
        jobs, self.jobs = self.jobs, []
        for work, done in jobs:
            done(work())

    def pass_time(self) -> None:
        timers, self.timers = self.timers, []
        for delay_s, function in timers:
            assert delay_s == NOTES_EVERY_S
            function()


def test_a_first_note_is_written_at_once() -> None:
    notes = Notes()
    notes.put("a", 5)
    assert not notes.noted
    notes.work()
    assert notes.written == [["a 5"]]
    assert notes.noted == [("a", 5)]


def test_the_latest_notes_of_all_tablets_are_written_together_when_time_has_passed() -> None:
    """Three configurations of a replacement cost one write of the file. Without the pause, each was one."""
    notes = Notes()
    notes.put("a", 5)
    notes.work()
    for tablet, index in (("a", 6), ("b", 3), ("a", 7)):
        notes.put(tablet, index)
    notes.work()
    assert notes.written == [["a 5"]]
    notes.pass_time()
    notes.work()
    assert notes.written == [["a 5"], ["a 7", "b 3"]]
    assert notes.noted == [("a", 5), ("a", 7), ("b", 3)]


def test_after_a_quiet_time_the_next_note_is_written_at_once() -> None:
    notes = Notes()
    notes.put("a", 5)
    notes.work()
    notes.pass_time()
    notes.put("a", 6)
    notes.work()
    assert notes.written == [["a 5"], ["a 6"]]


def test_a_note_of_a_replica_that_was_stopped_is_dropped() -> None:
    """Its files may be gone: a late note would make one again. Fails without the question in `ConfigNotes._begin`."""
    notes = Notes()
    notes.put("a", 5)
    notes.work()
    notes.put("a", 6)
    notes.put("b", 2)
    notes.stopped.add("a")
    notes.pass_time()
    notes.work()
    assert notes.written == [["a 5"], ["b 2"]]


def test_a_note_that_could_not_be_written_is_written_again_and_the_others_are_noted() -> None:
    """Or the log keeps its entry for ever. Fails without the note in `ConfigNotes._refused`."""
    notes = Notes()
    notes.put("x", 1)
    notes.work()
    notes.failing.add("a")
    notes.put("a", 5)
    notes.put("b", 6)
    notes.pass_time()
    notes.work()
    assert notes.noted == [("x", 1), ("b", 6)]
    notes.pass_time()
    notes.work()
    notes.failing.clear()
    notes.put("c", 7)
    notes.pass_time()
    notes.work()
    assert notes.written[-2:] == [["a 5"], ["a 5", "c 7"]]
    assert notes.noted == [("x", 1), ("b", 6), ("a", 5), ("c", 7)]


def test_a_later_note_replaces_one_that_could_not_be_written() -> None:
    notes = Notes()
    notes.failing.add("a")
    notes.put("a", 5)
    notes.put("a", 6)
    notes.work()
    notes.failing.clear()
    notes.pass_time()
    notes.work()
    assert notes.written == [["a 5"], ["a 6"]]
    assert notes.noted == [("a", 6)]
