"""`--html FILE` of the benchmarks: their tables, and curves where sizes grow, in the style of rk's reports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from cli.html.curves import Drawing
from cli.html.pages import render, write


def add_html_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--html FILE`."""
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write the tables, and curves, as a page")


def write_page(path: Path, title: str, text: str, drawings: Sequence[Drawing] = ()) -> None:
    """Write the Markdown that a benchmark prints as a page, below the drawings. Raise CliError if it cannot be
    written."""
    shown = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    write(path, render("figures.html", title=title, drawings=drawings, text=Markup(shown)))
