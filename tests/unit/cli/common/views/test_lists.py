"""Lists: states, order, limit, and what is said about the rest."""

from __future__ import annotations

import io
from typing import Any

import click
import pytest
from rich.console import Console

from cli.common.errors import UsageFaultError
from cli.common.options import Globals
from cli.common.views import lists
from cli.common.views.lists import LIMIT_DEFAULT, Listing, limit_of
from tests.support.docs.reference import all_commands, command_at

#: Every list that grows with the cluster or with time, and whether its rows have a state.
LISTS = {
    "region list": True,
    "table list": True,
    "server list": True,
    "tablet list": True,
    "plan list": True,
    "drill list": True,
    "backup list": True,
    "runs": True,
    "history": False,
}
#: Lists of what a person has made, or of the few members of a store.
SHORT = ("acl list", "coord list", "context list", "certs list")

Row = tuple[str, int | None, str]
ROWS: list[Row] = [("b", 2, "open"), ("a", None, "PARKED"), ("c", 2, "open"), ("d", 9, "closed")]
KEYS: dict[str, Any] = {"name": lambda one: one[0], "size": lambda one: one[1]}


def names(listing: Listing) -> str:
    return "".join(one[0] for one in listing.pick(ROWS, KEYS, lambda one: [one[2]]).rows)


def test_every_list_has_the_options() -> None:
    """A new list takes them, or is named above."""
    for words, has_states in LISTS.items():
        options = {name for one in command_at(words.split()).params for name in one.opts}
        assert {"--limit", "--sort"} <= options, words
        assert ("--state" in options) is has_states, words
    there = {" ".join(path) for path, _ in all_commands() if path[-1] == "list"}
    assert there <= {*LISTS, *SHORT}


def test_order() -> None:
    """Equal rows keep their order; unknown values come last in both directions."""
    assert names(Listing()) == "bacd"
    assert names(Listing(sort="name")) == "abcd"
    assert names(Listing(sort="-name")) == "dcba"
    assert names(Listing(sort="size")) == "bcda"
    assert names(Listing(sort="-size")) == "dbca"


def test_states() -> None:
    """The words of the list in any case, several of them; a mistyped one is named, an absent one is an empty list."""
    assert names(Listing(("parked",))) == "a"
    assert names(Listing(("OPEN", "closed"))) == "bcd"
    assert names(Listing(("draining",))) == ""
    with pytest.raises(UsageFaultError, match="'paked': no row has it") as raised:
        names(Listing(("paked",)))
    assert raised.value.hint == "Did you mean 'parked'?"


@pytest.mark.parametrize(("limit", "shown", "rest"), [(0, "bacd", 0), (3, "bac", 1), (4, "bacd", 0), (5, "bacd", 0)])
def test_limit(limit: int, shown: str, rest: int) -> None:
    picked = Listing(limit=limit).pick(ROWS, KEYS)
    assert "".join(one[0] for one in picked.rows) == shown
    out = io.StringIO()
    picked.print_rest(Console(file=out))
    assert out.getvalue() == ("" if not rest else f"… and {rest} more: --limit 0 shows all\n")


@pytest.mark.parametrize(
    ("given", "default", "is_terminal", "as_json", "limit"),
    [
        (None, None, True, False, LIMIT_DEFAULT),
        (None, None, True, True, 0),
        (None, None, False, False, 0),
        (7, None, True, False, 7),
        (0, None, True, False, 0),
        (None, 50, False, True, 50),
        (0, 50, False, False, 0),
    ],
)
def test_default_limit(
    monkeypatch: pytest.MonkeyPatch,
    given: int | None,
    default: int | None,
    is_terminal: bool,
    as_json: bool,
    limit: int,
) -> None:
    """Only a terminal has a default limit, because a pipe to grep must miss no row."""

    class Out(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(lists.sys, "stdout", Out())
    with click.Context(click.Command("list")) as context:
        context.ensure_object(Globals).json = as_json
        assert limit_of(given, default) == limit
