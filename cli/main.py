"""The `rk` command: the table of subcommands, and the boundary where errors become one clear line.

A subcommand's module is imported only when it runs, so `rk --help` stays quick and a daemon does not import table
printing. Therefore this table, and not the modules, contains the short help texts.
"""

from __future__ import annotations

import difflib
import errno
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import click
from click.core import ParameterSource

from cli.common.errors import MEANINGS, CliError, ExitStatus
from cli.common.options import JSON_VARIABLE, Globals, global_options
from cli.common.waiting import start_over
from coord.compiled import form, is_switched_on
from coord.security import process
from coord.security.credentials import Credentials
from coord.security.printable import quoted

DEBUG_VARIABLE: Final = "RK_DEBUG"
#: Garbage collection threshold of a daemon.
COLLECT_AFTER: Final = 50_000
#: Begin of the variables of all options: RK_REGION_LIST_LIMIT for `rk region list --limit`.
PREFIX: Final = "RK"
DISTRIBUTION: Final = "regionkeeper"


class CommandEntry(NamedTuple):
    """One subcommand: heading of the help, its name, `module:attribute` of the click command, one line of help."""

    heading: str
    name: str
    target: str
    help: str


_LOCAL: Final = "A cluster on this machine"
_LOOK: Final = "Look"
_CHANGE: Final = "Tables and regions"
_DATA: Final = "Rows"
_SHELL: Final = "This command"
_DAEMON: Final = "Daemons, one process each"

ENTRIES: Final[tuple[CommandEntry, ...]] = (
    CommandEntry(_LOCAL, "up", "cli.up.command:up", "Start store, masters and region servers; stay until Ctrl-C."),
    CommandEntry(_LOCAL, "topology", "cli.topology.command:topology", "Check and show a topology file, cluster.toml."),
    CommandEntry(_LOCAL, "systemd", "cli.topology.systemd:systemd", "Units of systemd for a machine of a topology."),
    CommandEntry(_LOCAL, "log-level", "cli.up.logs:log_level", "Let a running daemon log everything, or as usual."),
    CommandEntry(
        _LOCAL, "drill", "cli.drill.command:drill", "Kill a part of the cluster; measure, check the invariants."
    ),
    CommandEntry(
        _LOCAL, "simulate", "cli.simulate:simulate", "Clusters in simulated time: faults by seed, invariants."
    ),
    CommandEntry(
        _LOOK, "status", "cli.diagnose.status:status", "Store nodes, masters, servers, tables, regions in transition."
    ),
    CommandEntry(_LOOK, "health", "cli.diagnose.health:health", "One verdict with reasons; exit status 0, 1 or 2."),
    CommandEntry(_LOOK, "watch", "cli.diagnose.watch:watch", "One line for each step of a transition as it happens."),
    CommandEntry(
        _LOOK, "why", "cli.diagnose.why.region:why", "Why a region is where it is, who must act next, what would help."
    ),
    CommandEntry(_LOOK, "fsck", "cli.diagnose.fsck:fsck", "Compare store and servers; --fix takes legal steps."),
    CommandEntry(_LOOK, "audit", "cli.diagnose.audit:audit", "Alarms: broken rules, with the steps that led to them."),
    CommandEntry(
        _LOOK,
        "history",
        "cli.diagnose.past.history:history",
        "Every step of a region, table or server, with actor and cause.",
    ),
    CommandEntry(_LOOK, "state", "cli.diagnose.past.state:state", "The whole cluster as it was at a time or zxid."),
    CommandEntry(
        _LOOK, "debug", "cli.debug.command:debug", "A bundle for the report of a fault; stopped servers' files."
    ),
    CommandEntry(_LOOK, "runs", "cli.diagnose.past.runs:runs", "What each startup, failover and bulk assignment took."),
    CommandEntry(_LOOK, "tablet", "cli.tablets.command:tablet", "Tablets: health, leader, members, and why; copies."),
    CommandEntry(_CHANGE, "table", "cli.tables:table", "Create, list, alter, enable, disable, delete tables."),
    CommandEntry(_CHANGE, "region", "cli.regions:region", "List, move, split, merge, assign, unassign, retry regions."),
    CommandEntry(
        _CHANGE,
        "unstick",
        "cli.diagnose.why.unstick:unstick_command",
        "Take the legal step that helps a stuck region; shows it first.",
    ),
    CommandEntry(_CHANGE, "balance", "cli.balance:balance", "Even out the servers: on, off, one round, or a dry run."),
    CommandEntry(
        _CHANGE, "plan", "cli.plan.command:plan", "Bulk plans: create, show, diff, explain, apply, abort, resume."
    ),
    CommandEntry(_CHANGE, "secure", "cli.securing.secure:secure", "Secure an open cluster while it runs."),
    CommandEntry(_CHANGE, "grant", "cli.security.grants:grant", "Give a user a role: read, write or admin."),
    CommandEntry(_CHANGE, "revoke", "cli.security.grants:revoke", "Take a role from a user."),
    CommandEntry(_CHANGE, "acl", "cli.security.grants:acl", "Which user has which role."),
    CommandEntry(_DATA, "get", "cli.data:get", "The value or the columns at a key."),
    CommandEntry(_DATA, "put", "cli.data:put", "Put a value at a key, or a row of columns."),
    CommandEntry(_DATA, "delete", "cli.data:delete", "Delete a key."),
    CommandEntry(_DATA, "scan", "cli.data:scan", "Rows in the order of their keys."),
    CommandEntry(_DATA, "load", "cli.rows.load:load", "Put every row of a CSV or Parquet file."),
    CommandEntry(
        _DATA, "backup", "cli.backup.command:backup", "Rows and store in one directory: create, verify, restore."
    ),
    CommandEntry(
        _CHANGE, "certs", "cli.security.certs:certs", "Credentials of daemons and users: issue, rotate, revoke."
    ),
    CommandEntry(_SHELL, "whoami", "cli.security.grants:whoami", "The identity that the cluster knows you by."),
    CommandEntry(_SHELL, "login", "cli.shell.login:login", "Keep address and credentials for later commands."),
    CommandEntry(_SHELL, "logout", "cli.shell.login:logout", "Delete the credentials of a login."),
    CommandEntry(_SHELL, "context", "cli.shell.context:context", "Clusters by name: list, use, add, remove."),
    CommandEntry(
        _SHELL, "completion", "cli.shell.completion:completion", "Completion of commands and names in the shell."
    ),
    CommandEntry(_DAEMON, "coord", "cli.store.command:coord", "A node of the store."),
    CommandEntry(_DAEMON, "master", "cli.master:master", "A master, active or standby."),
    CommandEntry(_DAEMON, "server", "cli.server:server", "Run, list, drain, retire, fence region servers."),
)

#: A plain click.Group suggests close names itself, in the same line.
_NO_SUCH_COMMAND: Final = re.compile(r"No such command '([^']*)'\.$")
#: A group with at most this many commands lists them after a wrong one.
_COMMANDS_SHOWN: Final = 24
#: Errors of writing to standard output, besides a reader that has gone.
_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)

#: Python's words for a refused thread.
_NO_THREAD: Final = "can't start new thread"

_BY_NAME: Final = {entry.name: entry for entry in ENTRIES}
_DAEMONS: Final = ("coord", "master", "server")


class LazyGroup(click.Group):
    """A group whose commands are listed from `ENTRIES` and imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the names in the order of the help."""
        return [entry.name for entry in ENTRIES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return one command; None for an unknown name.

        Raise CliError if the module is not part of this installation.
        """
        entry = _BY_NAME.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        if cmd_name in _DAEMONS:
            # Modules stay in memory; scanning them again and again would take a tenth of a daemon's start.
            gc.set_threshold(COLLECT_AFTER)
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name == module_name:
                raise CliError(
                    f"rk {cmd_name} is not part of this installation", "Reinstall the project: make install."
                ) from error
            raise CliError(
                f"rk {cmd_name} needs the Python module {error.name!r}, which is not installed",
                "Install the project with its dependencies: make install.",
            ) from error
        command = getattr(module, attribute)
        assert isinstance(command, click.Command), f"{entry.target} is not a click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands below their headings without importing any of them."""
        headings = dict.fromkeys(entry.heading for entry in ENTRIES)
        width = max(len(entry.name) for entry in ENTRIES)
        for heading in headings:
            with formatter.section(heading):
                formatter.write_dl([(e.name.ljust(width), e.help) for e in ENTRIES if e.heading == heading])


_STATUSES: Final = "\n".join(f"  {status:<4} {short}" for status, (short, _) in MEANINGS.items())
_EPILOG: Final = f"""\b
First steps:
  rk up                              a whole cluster here, with a table of 200 regions
  rk status                          from a second terminal
  rk watch                           … see every transition
  rk drill master-failover           … while the active master is killed

\b
Exit status (rk health: 1 degraded, 2 unavailable; docs/exit-codes.md has all):
{_STATUSES}
"""


def _print_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    # Half of a daemon's imports at start; only this option needs it.
    from importlib import metadata

    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        version = "(run from a source tree)"
    click.echo(f"rk {version}, store {form()}")
    context.exit()


@click.group(
    cls=LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@global_options
@click.option(
    "--config-file",
    metavar="FILE",
    allow_from_autoenv=False,
    help="Configuration file.  [default: RK_CONFIG_FILE, or ~/.config/rk/config.toml]",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    allow_from_autoenv=False,
    help="Show the version.",
)
@click.pass_context
def rk(context: click.Context, config_file: str | None) -> None:
    """RegionKeeper keeps the regions of a sharded system where they belong.

    A ZooKeeper-compatible store on Raft, masters that assign regions, and region servers that open them. The options
    below are accepted before or after any subcommand.
    """
    given = context.ensure_object(Globals)
    given.config_file = config_file
    found = given.configure(rk)
    given.json = given.json or is_switched_on(JSON_VARIABLE) or found.json
    process.choose_by(lambda: _credentials(given))
    context.default_map = _with_daemons(found.commands, given.for_daemons())


def _credentials(given: Globals) -> Credentials | None:
    """Return the credentials that this command proves to daemons."""
    from cli.common.access import credentials_of  # not for `rk --help`

    return credentials_of(given)


def _with_daemons(commands: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the defaults of commands with the daemons' options that stand before the subcommand."""
    daemons = {name: commands.get(name, {}) for name in _DAEMONS}
    return {
        **commands,
        **{name: {**table, "run": {**table.get("run", {}), **given}} for name, table in daemons.items()},
    }


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; expected failures are printed as one clear line."""
    start_over()
    with quoted():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = rk.main(
            args=None if arguments is None else list(arguments),
            prog_name="rk",
            standalone_mode=False,
            auto_envvar_prefix=PREFIX,
        )
    except CliError as error:
        _trace_if_wanted()
        _print_error(error.message, error.hint)
        return error.exit_code
    except click.UsageError as error:
        error.show()
        _name_source(error)
        _suggest(error)
        return ExitStatus.USAGE
    except click.ClickException as error:
        _print_error(error.format_message(), "")
        return ExitStatus.REFUSED
    except (click.Abort, KeyboardInterrupt):
        return ExitStatus.INTERRUPTED
    except UnicodeEncodeError as error:
        _trace_if_wanted()
        _print_error(
            f"{error.object!a} is no text in UTF-8", "Names, keys and prefixes are text. Values may be any bytes."
        )
        return ExitStatus.USAGE
    except BrokenPipeError:
        # The reader of the output has gone (`rk watch | head`); avoid an error message at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.REFUSED
    except OSError as error:
        if error.filename is not None and not _refused_by_limit(error):
            return _unusable(error)
        if error.errno not in _OUTPUT_ERRORS and not _is_output_busy(error):
            return _fault(error)
        # The rest of the buffer cannot be written at the interpreter's exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _print_error(f"cannot write the output: {error.strerror}", "")
        return ExitStatus.REFUSED
    except Exception as error:  # the outermost boundary: users see a traceback only on request
        return _fault(error)
    return ExitStatus(result) if isinstance(result, int) else ExitStatus.OK


def _refused_by_limit(error: Exception) -> tuple[str, str] | None:
    """Return the operation that the system has refused because of a limit on this process or its user, and the settings
    of the limit; None for another error."""
    number = error.errno if isinstance(error, OSError) else 0
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return "memory", "ulimit -v, MemoryMax= of a unit"
    if str(error) == _NO_THREAD:
        return "a thread", "ulimit -u and -v, TasksMax= of a unit"
    if number in (errno.EMFILE, errno.ENFILE):
        return "an open file", "ulimit -n, LimitNOFILE= of a unit"
    is_fork = isinstance(error, OSError) and number == errno.EAGAIN and error.filename is None
    return ("a process", "ulimit -u, TasksMax= of a unit") if is_fork else None


def _is_output_busy(error: OSError) -> bool:
    """Return True if standard output accepts no more now, because another program has made the terminal or pipe
    non-blocking."""
    return isinstance(error, BlockingIOError) and hasattr(error, "characters_written")


def _fault(error: Exception) -> int:
    _trace_if_wanted()
    if refused := _refused_by_limit(error):
        what, limits = refused
        _print_error(f"the system refuses {what}: {error or type(error).__name__}", f"Raise the limit: {limits}.")
        return ExitStatus.REFUSED
    _print_error(
        f"unexpected {type(error).__name__}: {error}",
        f"This is an internal error of rk. {DEBUG_VARIABLE}=1 shows the traceback.",
    )
    return ExitStatus.FAULT


def _unusable(error: OSError) -> int:
    """Print the file that the system does not let this process use: a name too long, no permission, a full disk."""
    _trace_if_wanted()
    name = error.filename if error.filename2 is None else error.filename2
    shown = f"file descriptor {name}" if isinstance(name, int) else os.fsdecode(name)
    _print_error(f"cannot use {shown}: {error.strerror}", f"{DEBUG_VARIABLE}=1 shows what it was for.")
    return ExitStatus.REFUSED


def _name_source(error: click.UsageError) -> None:
    """Print the variable or the file that holds a wrong value, which is not on the command line."""
    parameter, context = getattr(error, "param", None), error.ctx
    if not isinstance(parameter, click.Option) or context is None or parameter.name is None:
        return
    source = context.get_parameter_source(parameter.name)
    if source is ParameterSource.ENVIRONMENT:
        known = [parameter.envvar] if isinstance(parameter.envvar, str) else []
        names = [*known, f"{context.auto_envvar_prefix}_{parameter.name.upper()}"]
        click.echo(f"The value is from {next(name for name in names if name in os.environ)}.", err=True)
    elif source is ParameterSource.DEFAULT_MAP:
        path = context.ensure_object(Globals).configuration.path
        click.echo(f"The value is from {path}." if path else "The value stands before the subcommand.", err=True)


def _suggest(error: click.UsageError) -> None:
    """Print the commands whose names are close to one that does not exist; of a small group, print all commands."""
    group, context = error.ctx.command if error.ctx is not None else None, error.ctx
    wrong = _NO_SUCH_COMMAND.search(error.format_message())
    if wrong is None or context is None or not isinstance(group, click.Group):
        return
    names = group.list_commands(context)
    close = difflib.get_close_matches(wrong[1], names, 3)
    if close:
        click.echo(f"Did you mean {' or '.join(f'`{context.command_path} {one}`' for one in close)}?", err=True)
    elif len(names) <= _COMMANDS_SHOWN:
        click.echo(f"Commands of {context.command_path}: {', '.join(names)}.", err=True)


def _trace_if_wanted() -> None:
    if is_switched_on(DEBUG_VARIABLE):
        traceback.print_exc()


def _print_error(message: str, hint: str) -> None:
    click.echo(f"rk: {message}", err=True)
    for line in hint.splitlines():
        click.echo(f"    {line}", err=True)


def main() -> NoReturn:
    """Entry point of the console script."""
    # numpy's library would start a thread for each processor, and end the process where a limit allows none. The plans'
    # arithmetic is on whole numbers, which this library does not compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(run())
