"""The help of a group of commands: each command with the whole first sentence of its help, at any width."""

from __future__ import annotations

from typing import Final

import click

#: Longer than any first sentence: click itself cuts it off where the line ends.
WHOLE: Final = 10_000


class CommandGroup(click.Group):
    """A group that folds the descriptions of its commands. click's own group cuts them off with "..." in a narrow
    terminal."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands below the heading `Commands`."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        lines = [(name, one.get_short_help_str(WHOLE)) for name, one in found if one is not None and not one.hidden]
        if lines:
            with formatter.section("Commands"):
                formatter.write_dl(lines)
