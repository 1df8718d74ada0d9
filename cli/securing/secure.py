"""`rk secure`: make a secured cluster of an open one while it runs."""

from __future__ import annotations

import enum
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
import msgspec

from cli.common import output
from cli.common.access import certs_dir_named, credentials_of, local_certs_dir, role_directory, store_access
from cli.common.connect import open_cluster
from cli.common.errors import CliError, ExitStatus, UnreachableError, UsageFaultError
from cli.common.local import (
    FIRST_USER,
    SERVER,
    SUPER_DIGEST_FILE,
    SUPER_FILE,
    LocalCluster,
    make_masters_identity,
    make_super,
    make_super_digest,
    named_local,
)
from cli.common.options import Globals, global_options
from cli.diagnose.access_lists import WantedLists, check_daemons, close_all, unnamed_servers
from cli.diagnose.fsck_deep import progress
from cli.securing.rolling import outdated, restart_all
from cli.security.separation import is_separated, separate
from cli.up.control import ControlRequest, ask
from coord import kill_points
from coord.client.access_lists import describe
from coord.client.following.revocations import SECURING_S
from coord.errors import ConfigError
from coord.security import making, process
from coord.security.credentials import CLUSTER_FILE, EVERY_PORT_FILE, OPEN_TOO_FILE
from coord.security.making import PEERS_FILE
from coord.security.principal import USER, Principal

#: Number of passes over the tree. A later pass closes znodes that were changed during the earlier ones.
_PASSES_MAX: Final = 5
#: Time until all daemons refuse callers without a proof: each looks for the file every SECURING_S.
_NOTICED_S: Final = 3 * SECURING_S
_DRY_WORDS: Final = "nothing was changed (--dry-run)"


class Door(enum.Enum):
    """State of the cluster: whether callers without a proof are served beside the others."""

    OPEN = "open"
    CLOSED = "closed"


class SecuredCluster(msgspec.Struct):
    """Steps that `rk secure` has taken, or would take with --dry-run."""

    #: Daemons that were restarted with credentials.
    restarted: list[str] = []
    masters: int = 0
    servers: int = 0
    znodes: int = 0
    #: Znodes whose access list was changed.
    changed: int = 0
    access: str = ""
    #: Whether region servers have the masters' credential, and this command cannot change that.
    shares_credential: bool = False
    #: Directories that region servers get instead of theirs: they have an identity of their own (`separation`).
    separated: list[str] = []
    door: Door = Door.CLOSED
    is_dry_run: bool = False
    #: Znodes whose list could not be changed.
    failed: list[str] = []


@click.command(epilog="Exit status: 0 done, 1 an access list could not be changed or a daemon hinders it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@click.option(
    "--finish", is_flag=True, help="Serve callers and peers without a proof no longer: the last step, for clients, too."
)
@click.option(
    "--begin",
    is_flag=True,
    help="For daemons that `rk up` does not run: make the credentials of --certs-dir, and print the next steps.",
)
@global_options
@click.pass_obj
def secure(given: Globals, dry_run: bool, finish: bool, begin: bool) -> int:
    """Secure an open cluster while it runs.

    For a cluster of `rk up` one command makes the credentials and restarts the daemons, one after the other, and then
    closes the znodes. From then on daemons prove their identity. Callers without a proof are still served, and may read
    the znodes, until `rk secure --finish`. Switch the clients in between.

    For other daemons begin with `rk secure --begin --certs-dir DIR`, and restart them as it says. `rk secure` with the
    credential that all masters and servers have (--store-auth or --store-sasl) then closes the znodes: every znode
    below the root, parents first. As long as a master or server runs without the credential, nothing is changed.

    Completed steps are skipped, so the command can be repeated after an interruption.
    """
    if begin and finish:
        raise UsageFaultError("--begin is the first step, --finish the last one", "Give one of them.")
    if begin:
        return _begin(given, dry_run=dry_run)
    report = SecuredCluster(is_dry_run=dry_run)
    try:
        return _secure(given, report, finish=finish, dry_run=dry_run)
    except KeyboardInterrupt:
        again = f"rk secure{' --finish' if finish else ''}"
        click.echo(f"\nrk: interrupted; the same command goes on where this one stopped: {again}", err=True)
        raise


def _secure(given: Globals, report: SecuredCluster, *, finish: bool, dry_run: bool) -> int:
    local = _running(given)
    if local is not None and not local.secured:
        if finish:
            raise CliError("the cluster is still open, so there is nothing to finish", "Run `rk secure` first.")
        report.restarted = _restart(given, local, dry_run=dry_run)
        if dry_run:
            return _shown(given, report)
    marker = _marker(given)
    if finish:
        _close_door(marker, dry_run=dry_run)
    report.door = Door.OPEN if marker.exists() else Door.CLOSED
    _close_znodes(given, report, is_finish=finish)
    if local is not None and local.secured:
        _separate_servers(given, local, report)
    elif local is None and not report.failed:
        _write_identities(given, report)
    return _shown(given, report)


# --- daemons of `rk up` ---


def _running(given: Globals) -> LocalCluster | None:
    """Return the cluster of a running `rk up` that the options name, else None."""
    local = named_local(given)
    if local is None:
        return None
    try:
        ask(given.data_path, ControlRequest("list"))
    except UnreachableError:
        if local.secured:
            return local
        raise
    return local


def _restart(given: Globals, local: LocalCluster, *, dry_run: bool) -> list[str]:
    """Restart the daemons with credentials, and have commands use theirs. Return the daemons' names."""
    say = _say(given)
    if dry_run:
        states = ask(given.data_path, ControlRequest("list"))
        return [one.name for one in (states if not local.securing else outdated(states))]
    ask(given.data_path, ControlRequest("secure", "begin"))
    restarted = restart_all(given.data_path, local, say)
    ask(given.data_path, ControlRequest("secure", "done"))
    process.choose_by(lambda: credentials_of(given))
    return restarted


def _say(given: Globals) -> Callable[[str], None]:
    """Return a function that prints a line of progress; with --json it prints nothing on standard output."""
    if given.json and not sys.stderr.isatty():
        return lambda _text: None
    return lambda text: click.echo(f"rk: {text}", err=True)


def _separate_servers(given: Globals, local: LocalCluster, report: SecuredCluster) -> None:
    """Restart the region servers of a cluster that an earlier build has secured without the masters' credential. All
    znodes have the lists for this. Raise CliError."""
    if report.failed or "store-servers" in given.settings():
        return
    states = ask(given.data_path, ControlRequest("list"))
    if local.separate_servers and not outdated(states):
        return
    if report.is_dry_run:
        report.restarted = [one.name for one in states if one.role == SERVER]
        return
    if not local.separate_servers:
        ask(given.data_path, ControlRequest("secure", "separate"))
        kill_points.reached("servers separated")
    report.restarted += restart_all(given.data_path, local, _say(given))


def _write_identities(given: Globals, report: SecuredCluster) -> None:
    """Write the files by which region servers that `rk up` does not run prove their own identity to the store, if
    `--store-auth @DIR` names a directory without them. All znodes have the lists for this. Raise CliError."""
    directory = role_directory(given.settings())
    if directory is None:
        report.shares_credential = not store_access(given).servers
        return
    if is_separated(directory):
        return
    report.separated = [str(directory)] if report.is_dry_run else [str(one) for one in separate(directory)]


# --- the door for callers without a proof ---


def _marker(given: Globals) -> Path:
    """Return the file that keeps the door open."""
    return (certs_dir_named(given) or local_certs_dir(given)) / OPEN_TOO_FILE


def _close_door(marker: Path, *, dry_run: bool) -> None:
    """Stop serving callers that have no proof, and return once all daemons have noticed. Raise CliError.

    If `rk up` does not run the daemons, the operator may have removed the file already.
    """
    if dry_run:
        return
    try:
        marker.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(
            f"cannot remove {marker}: {error.strerror}", "Remove it: daemons notice within a second."
        ) from error
    kill_points.reached("door closed")
    time.sleep(_NOTICED_S)


def _close_znodes(given: Globals, report: SecuredCluster, *, is_finish: bool) -> None:
    """Give every znode its access list, and fill in the report. Raise CliError."""
    with open_cluster(given) as cluster:
        cluster.require()
        wanted = WantedLists(cluster)
        unnamed = unnamed_servers(cluster)
        if unnamed:
            raise UsageFaultError(
                "the region servers of this cluster have an identity of their own, which this command would lock out",
                f"Give --store-servers {unnamed} (RK_STORE_SERVERS), as to the masters.",
            )
        if not wanted:
            raise UsageFaultError(
                "there is no credential to which the znodes could be closed",
                "Give the one that all masters and servers have: --store-auth USER:PASSWORD, @FILE, or @DIR with"
                " credentials of the cluster (RK_STORE_AUTH)."
                " Daemons that run without one: `rk secure --begin --certs-dir DIR` first.",
            )
        report.masters, report.servers = check_daemons(cluster, wanted)
        report.access = describe(wanted.usual())
        show = progress()
        for number in range(1 if report.is_dry_run else _PASSES_MAX):
            changed, znodes, report.failed = close_all(
                cluster, wanted, show, dry_run=report.is_dry_run, registrations=is_finish
            )
            report.changed += changed
            report.znodes = znodes if number == 0 else report.znodes
            if not changed and not report.failed:
                break


def _shown(given: Globals, report: SecuredCluster) -> int:
    if given.json:
        output.print_json(report)
    else:
        _print(report)
    return ExitStatus.REFUSED if report.failed else ExitStatus.OK


def _print(report: SecuredCluster) -> None:
    would = "would be " if report.is_dry_run else ""
    if report.restarted:
        click.echo(f"{would}restarted with credentials, one after the other: {', '.join(report.restarted)}")
    if report.is_dry_run and report.restarted:
        click.echo("then the znodes would be closed, and callers without a proof served until `rk secure --finish`")
    if report.znodes:
        daemons = f"{output.count(report.masters, 'master')} and {output.count(report.servers, 'server')}"
        click.echo(f"{daemons} run with the credential")
        click.echo(
            f"{output.count(report.znodes, 'znode')}: {output.count(report.changed, 'access list')} {would}changed"
        )
    if report.znodes and not report.is_dry_run and not report.failed:
        click.echo(f"on all of them: {report.access}; everybody else: nothing")
    if report.separated and not report.is_dry_run:
        click.echo(
            f"region servers can have an identity of their own: copy {', '.join(report.separated)} to their machines,"
            f" and delete {SUPER_FILE} where only region servers run. Restart the servers one after the other with"
            " --store-auth @DIR, as `rk systemd` and `rk topology run` do, then `rk secure` again."
        )
    if report.shares_credential:
        click.echo(
            "region servers have the masters' credential. With --store-auth @DIR of `rk topology"
            " credentials` or `rk secure --begin` they can have an identity of their own (docs/security.md)"
        )
    for path in report.failed[:10]:
        click.echo(f"NOT CHANGED  {path}: the credential may not change its access list (a superuser may)")
    if report.is_dry_run:
        click.echo(_DRY_WORDS)
    elif report.door is Door.OPEN:
        click.echo(
            "Callers without a proof are still served, and may read the znodes. Give the clients credentials"
            " (`rk certs issue --user NAME --to DIR`), then `rk secure --finish`."
        )


# --- other daemons ---


def _begin(given: Globals, *, dry_run: bool) -> int:
    """Make the credentials of daemons that `rk up` does not run, and say how they are restarted. Raise CliError."""
    directory = certs_dir_named(given)
    if directory is None:
        raise UsageFaultError(
            "--begin makes the credentials of daemons that `rk up` does not run, and needs their directory",
            "Give --certs-dir DIR. For a cluster of `rk up` leave --begin out.",
        )
    if (directory / EVERY_PORT_FILE).exists():
        raise CliError(
            f"{directory} is for TLS on every port, to which a running cluster cannot change",
            "Secure it by keys first, in another directory; or stop all daemons and start them with TLS.",
        )
    # An older cluster's access lists do not name the region servers, which then need its credential.
    is_separate = is_separated(directory) or not (directory / SUPER_FILE).exists()
    steps = _steps(directory, is_separate=is_separate)
    if not dry_run:
        try:
            if not (directory / CLUSTER_FILE).exists():
                making.init(directory, Principal(USER, FIRST_USER))
            make_super(directory)
            make_super_digest(directory)
            if is_separate:
                make_masters_identity(directory)
            making.write_private(directory / OPEN_TOO_FILE, b"")
        except ConfigError as error:
            raise CliError(str(error), "Give a --certs-dir that you may write.") from error
    text = "\n".join(
        [*(f"{number}. {step}" for number, step in enumerate(steps, 1)), *([_DRY_WORDS] if dry_run else [])]
    )
    output.report({"directory": str(directory), "steps": steps, "is_dry_run": dry_run}, text, as_json=given.json)
    return ExitStatus.OK


def _steps(directory: Path, *, is_separate: bool) -> list[str]:
    """Return the operator's steps after --begin, in order."""
    without = f", and {SUPER_FILE} where only region servers run" if is_separate else ""
    secret = f"--peer-secret-file {directory / PEERS_FILE}"
    digest = f"--super-digest-file {directory / SUPER_DIGEST_FILE}"
    close = f"--store-auth @{directory}"
    return [
        f"Copy {directory} to every machine of a daemon, mode 0700, with the file {OPEN_TOO_FILE}; leave out"
        f" {USER}.{FIRST_USER}.json{without}. Units of `rk systemd`: copy it to"
        ' credentials-dir, write credentials = "keys" in the topology file, run `rk systemd` again, and restart the'
        " units below.",
        f"Restart the store nodes one after the other with --certs-dir {directory} --require-auth rk {digest} {secret};"
        " wait for /ready of each.",
        f"Restart the masters one after the other with --certs-dir {directory} {close}.",
        f"Restart the region servers in the same way, with the same options and {secret}; wait for `rk health` before"
        " the next one.",
        f"rk secure --certs-dir {directory} {close}",
        f"Give the clients credentials: rk certs issue --certs-dir {directory} --user NAME --to DIR.",
        f"Delete {OPEN_TOO_FILE} on every machine, then: rk secure --finish --certs-dir {directory} {close}",
    ]
