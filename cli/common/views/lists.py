"""Lists: --state, --sort and --limit, the same for every list.

    @listed(("name", "size"), "table", default="name")
    def list_(given: Globals, listing: Listing) -> None:
        picked = listing.pick(found, {"name": lambda one: one.name, …}, lambda one: [one.state])
        … print picked.rows …
        picked.print_rest(console)

A terminal shows 100 rows and the number of the others. A pipe and `--json` get every row unless --limit is given, so a
program or `grep` misses none.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

import click
from rich.console import Console

from cli.common.errors import UsageFaultError
from cli.common.options import Globals

Row = TypeVar("Row")
#: Sort key of a row. None stands for unknown, and comes last in both directions.
Key = Callable[[Row], Any]

#: Rows of a list that a terminal shows without --limit.
LIMIT_DEFAULT: Final = 100


class Picked(NamedTuple, Generic[Row]):
    """The rows to show, and the number of the others."""

    rows: list[Row]
    left_out: int

    def print_rest(self, console: Console) -> None:
        """Say that there are more rows."""
        if self.left_out:
            console.print(f"… and {self.left_out} more: --limit 0 shows all", style="dim")


class Listing(NamedTuple):
    """Selection by the options of a list."""

    states: tuple[str, ...] = ()
    sort: str = ""
    #: 0: every row.
    limit: int = 0

    def pick(
        self,
        found: Iterable[Row],
        keys: Mapping[str, Key[Row]],
        states_of: Callable[[Row], Collection[str]] | None = None,
    ) -> Picked[Row]:
        """Return the rows in the wanted states, in the wanted order, up to the limit.

        `keys` has the keys of --sort, `states_of` the states of a row as the list shows them. Raise UsageFaultError for
        a state that no row has and that is close to another one.
        """
        rows = list(found)
        if self.states and states_of is not None:
            rows = self._in_state(rows, states_of)
        if self.sort:
            rows = _ordered(rows, keys[self.sort.removeprefix("-")], is_descending=self.sort.startswith("-"))
        shown = rows[: self.limit] if self.limit else rows
        return Picked(shown, len(rows) - len(shown))

    def _in_state(self, rows: list[Row], states_of: Callable[[Row], Collection[str]]) -> list[Row]:
        wanted = {one.lower() for one in self.states}
        there = {state.lower() for row in rows for state in states_of(row)}
        for one in wanted - there:
            close = difflib.get_close_matches(one, there, 1)
            if close:
                raise UsageFaultError(f"--state {one!r}: no row has it", f"Did you mean {close[0]!r}?")
        return [row for row in rows if wanted & {state.lower() for state in states_of(row)}]


#: The list as it is.
EVERYTHING: Final = Listing()


def _ordered(rows: Sequence[Row], key: Key[Row], *, is_descending: bool) -> list[Row]:
    """Return the rows by key. Equal rows keep their order, unknown values come last."""
    known = [row for row in rows if key(row) is not None]
    known.sort(key=key, reverse=is_descending)
    return known + [row for row in rows if key(row) is None]


def limit_of(given: int | None, default: int | None) -> int:
    """Return the limit of --limit, or the list's default, or that of the terminal."""
    if given is not None or default is not None:
        return given if given is not None else default or 0
    as_json = click.get_current_context().ensure_object(Globals).json
    return LIMIT_DEFAULT if sys.stdout.isatty() and not as_json else 0


def listed(
    sorts: Sequence[str], what: str, *, states: str = "", limit: int | None = None, default: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options to a command, which receives them as `listing`.

    `sorts`: the keys of --sort; `what`: the word for a row; `states`: the states in words, "" if the list has none;
    `limit`: the default of --limit everywhere, instead of LIMIT_DEFAULT in a terminal; `default`: the usual order.
    """
    choices = [name for one in sorts for name in (one, f"-{one}")]
    in_words = ", ".join(sorts)
    usual = "100 in a terminal, else all" if limit is None else str(limit)
    usual_limit = limit

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def shaped(*args: Any, limit: int | None, sort: str | None, **kwargs: Any) -> Any:
            wanted = tuple(kwargs.pop("state", ()))
            return command(*args, listing=Listing(wanted, sort or "", limit_of(limit, usual_limit)), **kwargs)

        shaped = click.option(
            "--sort", type=click.Choice(choices), metavar="COLUMN",
            help=f"Order by {in_words}; -{sorts[0]}: the largest first.  [default: {default or sorts[0]}]",
        )(shaped)  # fmt: skip
        shaped = click.option(
            "--limit", type=click.IntRange(0), metavar="N",
            help=f"Show at most N {what}s; 0: all.  [default: {usual}]",
        )(shaped)  # fmt: skip
        if states:
            shaped = click.option(
                "--state", multiple=True, metavar="STATE",
                help=f"Only {what}s in this state: {states}; repeatable.",
            )(shaped)  # fmt: skip
        return shaped

    return decorated
