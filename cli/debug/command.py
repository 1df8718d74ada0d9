"""`rk debug`: the table of its commands, which are imported when they run."""

from __future__ import annotations

import importlib
from typing import Final

import click

from cli.common.options import global_options
from cli.common.views.help import CommandGroup

#: Name of a command of `rk debug tablet`, its attribute in `cli.debug.tablet`, and one line of help.
_TABLET: Final = {
    "meta": ("meta", "The superblock of a tablet."),
    "cmeta": ("cmeta", "The consensus metadata: number, members, term and vote."),
    "log": ("log", "The tablet's entries in the shared log, or in its exported log."),
    "rows": ("rows", "The tablet's rows, and the state that they have."),
    "verify": ("verify", "Check every file; say what a start would do."),
}


class _TabletGroup(click.Group):
    """The commands of `_TABLET`."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the names in the order of the table."""
        return list(_TABLET)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command; None for an unknown name."""
        if cmd_name not in _TABLET:
            return None
        command = getattr(importlib.import_module("cli.debug.tablet"), _TABLET[cmd_name][0])
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[1]) for name, entry in _TABLET.items()])


class _DebugGroup(CommandGroup):
    """`tablet`, and `bundle`, which is imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return ["bundle", *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command; None for an unknown name."""
        if cmd_name != "bundle":
            return super().get_command(ctx, cmd_name)
        from cli.debug.bundle.command import bundle  # it loads much of `rk`

        return bundle


@click.group(cls=_DebugGroup)
@global_options
def debug() -> None:
    """One file for the report of a fault; the files of stopped daemons, in words."""


@debug.group(cls=_TabletGroup)
def tablet() -> None:
    """The tablets in the directory of a stopped region server (--data-dir). Nothing is written."""
