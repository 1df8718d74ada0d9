"""Waits of commands for work of the masters: they look repeatedly, and print changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from cli.common import output
from cli.common.errors import CliError, UnreachableError
from cli.common.waiting import limit_each_wait

#: Pause between two looks.
LOOK_S: Final = 0.5


class Look(NamedTuple):
    """Result of one look: progress of the work in one line, and whether it is over."""

    text: str
    is_over: bool


def follow(look: Callable[[], Look], wait_s: float, *, is_quiet: bool = False) -> Look:
    """Look until the work is over or `wait_s` have passed, and print each change to standard error.

    A change of masters in between is printed, too. Return the last look. Raise the errors of `look`, except
    UnreachableError before the deadline.
    """
    limit_each_wait()
    began_s = time.monotonic()
    console = output.console(stderr=True)
    said, last = "", Look("", False)
    while True:
        try:
            last = look()
        except UnreachableError as error:
            if time.monotonic() - began_s >= wait_s:
                raise
            last = Look(f"no answer: {error.message}", False)
        passed_s = time.monotonic() - began_s
        if last.text != said and not is_quiet:
            console.print(f"{passed_s:6.1f} s  {last.text}", markup=False, soft_wrap=True)
            said = last.text
        if last.is_over or passed_s >= wait_s:
            return last
        time.sleep(min(LOOK_S, max(0.0, wait_s - passed_s)))


def not_over(what: str, last: Look, wait_s: float, hint: str) -> CliError:
    """Return the error for work that goes on after the command has stopped waiting."""
    return CliError(f"{what} is not finished after {wait_s:g} s: {last.text}", f"It goes on by itself. {hint}")
