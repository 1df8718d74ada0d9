"""`rk completion`: the script that lets a shell complete commands, options and names.

rk completion install bash      writes the script where bash, zsh or fish looks for it
rk completion show zsh          prints it
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from cli.common import output
from cli.common.errors import CliError
from cli.common.options import Globals, global_options
from cli.common.views.help import CommandGroup

#: Variable by which the shell asks `rk` for completions.
VARIABLE: Final = "_RK_COMPLETE"
_SHELLS: Final = click.Choice(["bash", "zsh", "fish"])
#: File below the base directory (XDG_DATA_HOME, for fish XDG_CONFIG_HOME) from which the shell loads the script.
_FILES: Final = {
    "bash": "bash-completion/completions/rk",
    "zsh": "zsh/site-functions/_rk",
    "fish": "fish/completions/rk.fish",
}
_THEN: Final = {
    "bash": "New shells use it if the package bash-completion is installed; else: source {path}",
    "zsh": "Add to ~/.zshrc, before compinit: fpath=({folder} $fpath)",
    "fish": "New shells use it.",
}


@click.group(cls=CommandGroup)
def completion() -> None:
    """Completion of commands, options, tables, regions, servers and plans in the shell.

    Names come from the cluster that the options and variables of the line name. A cluster that does not answer within
    a second yields no names.
    """


@completion.command()
@click.argument("shell", type=_SHELLS)
@global_options
@click.pass_context
def show(context: click.Context, shell: str) -> None:
    """Print the script for bash, zsh or fish."""
    script = script_of(shell, context.find_root().command)
    output.report({"shell": shell, "script": script}, script.rstrip("\n"), as_json=context.ensure_object(Globals).json)


@completion.command()
@click.argument("shell", type=_SHELLS)
@global_options
@click.pass_context
def install(context: click.Context, shell: str) -> None:
    """Write the script where bash, zsh or fish looks for it."""
    path = place_of(shell)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script_of(shell, context.find_root().command), encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", f"rk completion show {shell} prints it.") from error
    text = f"wrote {path}\n{_THEN[shell].format(path=path, folder=path.parent)}"
    output.report({"shell": shell, "file": str(path)}, text, as_json=context.ensure_object(Globals).json)


def place_of(shell: str) -> Path:
    """Return the file from which a shell loads the script."""
    variable, usual = ("XDG_CONFIG_HOME", "~/.config") if shell == "fish" else ("XDG_DATA_HOME", "~/.local/share")
    return Path(os.environ.get(variable) or usual).expanduser() / _FILES[shell]


def script_of(shell: str, command: click.Command) -> str:
    """Return the script by which a shell completes `command`."""
    maker: type[ShellComplete] | None = get_completion_class(shell)
    assert maker is not None, shell
    # `source` of click starts bash to see its version; the template needs no shell.
    made = maker(command, {}, "rk", VARIABLE)
    return made.source_template % made.source_vars()
