"""Steps of several copies share their syncs; each copy's steps stay in order, and a failure is that of one copy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from coord.errors import StorageError
from regionserver.tablets.disk.steps import Effect, RemoveFile
from regionserver.tablets.process.files_work import SharedSteps
from tests.support.helpers import eventually


class Files:
    """The files' thread, which works only when the test lets it."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.jobs: list[Callable[[], None]] = []
        self.failing = ""
        self.has_ended = False
        work: Any = self
        self.steps = SharedSteps(work, self.jobs.append, lambda: self.has_ended)

    def carry_out_together(self, plans: Sequence[Sequence[Effect]]) -> None:
        paths = [effect.path for plan in plans for effect in plan if isinstance(effect, RemoveFile)]
        self.batches.append(paths)
        if self.failing in paths:
            raise StorageError(f"{self.failing} is broken")

    def work(self) -> None:
        self.jobs.pop(0)()


class Copy(threading.Thread):
    """A copy that carries out steps."""

    def __init__(self, files: Files, *names: str, at_once: bool = False) -> None:
        super().__init__(daemon=True)
        self._files = files
        self._at_once = at_once
        self._names = names
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            steps = self._files.steps
            (steps.carry_out_at_once if self._at_once else steps.carry_out)([RemoveFile(name) for name in self._names])
        except StorageError as error:
            self.error = error

    def ended(self) -> Exception | None:
        self.join(10)
        assert not self.is_alive()
        return self.error


def wait_for(files: Files, count: int) -> None:
    eventually(lambda: len(files.steps._waiting) == count, 10, f"{count} steps wait")


def test_steps_that_wait_together_are_carried_out_together_and_each_copy_in_order() -> None:
    files = Files()
    first = Copy(files, "a1", "a2")
    wait_for(files, 1)
    second = Copy(files, "b1")
    wait_for(files, 2)
    assert len(files.jobs) == 1
    files.work()
    assert second.ended() is None
    wait_for(files, 1)
    files.work()
    assert first.ended() is None
    assert files.batches == [["a1", "b1"], ["a2"]]


def test_steps_whose_order_does_not_matter_wait_once() -> None:
    """Fails if `carry_out_at_once` carries them out one after the other, as `carry_out` does."""
    files = Files()
    first = Copy(files, "a1", "a2", at_once=True)
    wait_for(files, 1)
    files.failing = "b1"
    second = Copy(files, "b1", "b2", at_once=True)
    wait_for(files, 2)
    files.work()
    assert first.ended() is None
    assert str(second.ended()) == "b1 is broken"
    assert files.batches == [["a1", "a2", "b1", "b2"], ["a1", "a2"], ["b1", "b2"]]


def test_a_step_that_fails_ends_its_own_copy_alone() -> None:
    files = Files()
    files.failing = "a"
    first = Copy(files, "a", "a2")
    wait_for(files, 1)
    second = Copy(files, "b")
    wait_for(files, 2)
    files.work()
    assert second.ended() is None
    assert str(first.ended()) == "a is broken"
    assert files.batches == [["a", "b"], ["a"], ["b"]]


def test_a_copy_does_not_wait_for_a_server_that_ends() -> None:
    files = Files()
    copy = Copy(files, "a")
    wait_for(files, 1)
    files.has_ended = True
    error = copy.ended()
    with pytest.raises(StorageError, match="the server ends"):
        raise error or AssertionError("the step was carried out")
