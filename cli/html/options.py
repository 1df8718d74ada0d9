"""The option `--html FILE` of commands that can write their report as a page."""

from __future__ import annotations

from pathlib import Path

import click

html_option = click.option(
    "--html",
    "html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the report as a page into this file.",
)
