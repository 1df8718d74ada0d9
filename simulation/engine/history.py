"""One simulated history of Raft groups or of store nodes: timeline, trace, counts, failures that can be replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from simulation.engine.chance import SeededRandom
from simulation.engine.timeline import POLL_US, SECOND, Timeline


class Violation(AssertionError):  # noqa: N818 - it names what was violated
    """Raised when an invariant does not hold."""


class SeededHistory(Timeline):
    """The timeline of one seed and size. Subclasses add the machines, and the command that replays a history."""

    #: Exceptions of an event that end a history as a failure.
    FAILURES: ClassVar[tuple[type[Exception], ...]] = (AssertionError,)
    POLL_US: ClassVar[int] = POLL_US

    def __init__(self, seed: int, size: int, *, trace: bool) -> None:
        super().__init__(SeededRandom(seed * 1000 + size))
        self.seed = seed
        self.size = size
        self.lines: list[str] | None = [] if trace else None
        self.counts: Counter[str] = Counter()

    def replay(self) -> str:
        """Return the command that repeats this history."""
        raise NotImplementedError

    def note(self, line: str) -> None:
        """Add a line to the trace."""
        if self.lines is not None:
            self.lines.append(f"{self.now / SECOND:.6f} {line}")

    def play_until(self, end: int, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass as `run_until` does. Raise Violation with seed, time and the command that repeats the
        history."""
        try:
            return self.run_until(end, done, self.POLL_US)
        except self.FAILURES as error:
            raise self.failure(error) from error

    def failure(self, error: BaseException) -> Violation:
        """Return the violation with the command that repeats it."""
        text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        return Violation(
            f"{text}\n  at {self.now / SECOND:.6f} s of seed {self.seed}, {self.size} nodes; replay: {self.replay()}"
        )
