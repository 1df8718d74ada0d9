"""Generated pages equal their sources: `make docs` writes them."""

from __future__ import annotations

import inspect
import re
from typing import Final

import click
import pytest

from regions.records.znode_table import ZNODES
from regions.records.znodes import Layout
from tests.support.docs.pages import PAGES
from tests.support.docs.reference import all_commands
from tests.support.sources import ROOT, text_files

#: Options of `spark-submit` that pages name.
_OTHERS: Final = frozenset(
    {"--no-deps", "--deploy-mode", "--executor-memory", "--py-files"}
    | {"--build", "--rm", "--now", "--system", "--from-file"}  # docker, systemctl, useradd, kubectl
)
#: Paths of `Layout` that are directories of the rows, or lists of paths.
_DIRECTORIES: Final = {
    "root", "parents", "records", "shard_paths", "parse_transition", "transition_of", "server_rights",
    "masters", "servers", "draining", "tables", "names", "regions", "unassigned", "plans", "history", "alarms", "runs",
    "moves", "intents", "fenced", "barred", "requests", "shared", "drills", "undo", "forgotten",
    "reshardings",
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_page_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run `make docs`"


def test_every_znode_has_a_row() -> None:
    made = {name for name in dir(Layout()) if name[0] != "_"}
    assert made - _DIRECTORIES == {one.made_by for one in ZNODES}


def test_rows_of_znodes_have_the_paths_of_the_layout() -> None:
    """Inserted values are in angle brackets; otherwise the row's path is that of `Layout`."""
    layout = Layout("")
    for one in ZNODES:
        maker = getattr(layout, one.made_by)
        if callable(maker):
            path = maker(
                *(7 if name in ("replica", "epoch", "number") else "x" for name in inspect.signature(maker).parameters)
            )
        else:
            path = maker
        assert re.fullmatch(re.sub(r"<\w+>", "[0-9a-z]+", one.path), path), (one.path, path)


def test_options_that_pages_name_exist() -> None:
    """Options of `rk`, or of a program of this repository that parses its own command line."""
    known = {"--help", "--version", "--config-file", *_OTHERS}
    for _, command in all_commands():
        for param in command.params:
            if isinstance(param, click.Option):
                known.update([*param.opts, *param.secondary_opts])
    for source in text_files():
        if source.suffix == ".py":
            known.update(re.findall(r"add_argument\(\s*[\"'](--[a-z-]+)", source.read_text()))
    unknown = {}
    for page in text_files():
        if page.suffix == ".md" and (page.is_relative_to(ROOT / "docs") or page == ROOT / "README.md"):
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]\b", page.read_text()))
            if strange := sorted(named - known):
                unknown[str(page.relative_to(ROOT))] = strange
    assert unknown == {}
