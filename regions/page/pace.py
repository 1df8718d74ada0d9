"""The pace of one kind of work for the page: its CPU time is at most a share of the master's.

The work earns a share of the CPU time that the whole process uses. So a busy master spends the same share on its page,
however much it waits between its steps. The work also earns a small share of the elapsed time, so that the page of a
master at rest stays fresh. The master's shell reads the clocks; the pace is pure.
"""

from __future__ import annotations

from typing import Final

#: Part of the time that passes which counts like CPU time of the process.
IDLE_PART: Final = 0.1
#: CPU seconds that may be saved up, so that a change after a pause is shown at once.
SAVED_MAX_S: Final = 0.02
#: Debt beyond this is forgiven: after one long piece of work the page is not silent for long.
DEBT_MAX_S: Final = 0.05


class WorkPace:
    """Says when the next piece of work may begin. `wall_s` and `cpu_s` are clocks that never go back."""

    def __init__(self, share: float, least_s: float, most_s: float) -> None:
        """`share`: part of the process's CPU time. The work is done at most once within `least_s`, and at the latest
        `most_s` after the last time, whatever it costs."""
        self._share, self._least_s, self._most_s = share, least_s, most_s
        self._wall_s = self._cpu_s = self._ended_s = float("-inf")
        #: CPU seconds that may be spent; below 0 after work that took longer.
        self.left_s = SAVED_MAX_S

    def is_due(self, wall_s: float, cpu_s: float, *, goes_on: bool = False) -> bool:
        """Return True if the work may begin now. `goes_on`: this is the rest of a piece of work that has begun, so the
        shortest pause does not apply."""
        if self._wall_s > float("-inf"):
            earned_s = self._share * (cpu_s - self._cpu_s + IDLE_PART * (wall_s - self._wall_s))
            self.left_s = min(SAVED_MAX_S, self.left_s + earned_s)
        self._wall_s, self._cpu_s = wall_s, cpu_s
        waited_s = wall_s - self._ended_s
        return waited_s >= self._most_s or ((goes_on or waited_s >= self._least_s) and self.left_s > 0)

    def spend(self, cpu_s: float, wall_s: float) -> None:
        """Note that a piece of work has taken `cpu_s`, and ended at `wall_s`."""
        self.left_s = max(-DEBT_MAX_S, self.left_s - cpu_s)
        self._ended_s = wall_s
