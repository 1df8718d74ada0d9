"""`rk coord run`: a node of the store, in the foreground; and the table of the other `rk coord` commands."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from cli.common.errors import UsageFaultError
from cli.common.options import apply_options, given_before, global_options, log_options
from cli.common.peers import peer_tls
from cli.common.views.help import WHOLE
from coord.errors import ConfigError
from coord.security import process
from coord.security.principal import NODE, Principal
from coord.server.config.exposure import check_exposed
from coord.server.config.secrets import read_peer_secret, read_super_digest, read_users, warn_if_open
from coord.server.config.settings import (
    DEFAULT_WORDS,
    RANGES,
    REQUIRABLE_SCHEMES,
    StoreSettings,
    parse_address,
    parse_join,
    parse_observers,
    parse_peers,
    parse_schemes,
    parse_words,
)
from coord.server.config.zoo_cfg import read_zoo_cfg
from coord.tls.context import TlsFiles

_FILE: Final = click.Path(path_type=Path)
_DEFAULTS = StoreSettings(1, Path(), ("", 1))
_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Limit(NamedTuple):
    """A numeric option of `rk coord run` that sets the field `name` of StoreSettings."""

    option: str
    name: str
    metavar: str
    help: str


_UNBOUNDED: Final = "0: no limit."
_LIMITS: Final = (
    _Limit("--tick-ms", "tick_ms", "MS", "Unit of session timeouts (2 to 20 ticks)."),
    _Limit("--max-connections-per-address", "connections_per_address_max", "N", _UNBOUNDED),
    _Limit("--max-connections", "connections_max", "N", "0: the process's limit of descriptors."),
    _Limit("--max-outstanding", "outstanding_max", "N", "Unanswered requests per connection."),
    _Limit("--max-frame-bytes", "frame_bytes_max", "N", "Longest request (jute.maxbuffer)."),
    _Limit("--max-sessions", "sessions_max", "N", "Sessions in the cluster."),
    _Limit("--max-sessions-per-address", "sessions_per_address_max", "N", "0: half of what the other addresses leave."),
    _Limit("--max-watches", "watches_max", "N", f"Watches of one session. {_UNBOUNDED}"),
    _Limit("--max-znodes", "znodes_max", "N", f"Znodes in the store; at the limit creates are rejected. {_UNBOUNDED}"),
    _Limit("--max-data-bytes", "data_bytes_max", "N", f"Bytes of paths and data in the store, likewise. {_UNBOUNDED}"),
    _Limit("--reap-interval-ms", "reap_interval_ms", "MS", "Time between two searches for empty containers and expired"
           " TTL znodes."),
    _Limit("--max-output-bytes", "output_bytes_max", "N", "Bytes of replies that may wait for one client."),
    _Limit("--connect-timeout-ms", "connect_timeout_ms", "MS", "A connection must send its first request within this"
           " time."),
    _Limit("--stall-timeout-ms", "stall_timeout_ms", "MS", "A client that reads none of its replies for this time is"
           " disconnected."),
)  # fmt: skip
_LOG_LIMITS: Final = (
    _Limit("--snapshot-entries", "snapshot_entries", "N", "Log entries between snapshots."),
    _Limit("--keep-entries", "keep_entries", "N", "Log entries before a snapshot that are kept for slow nodes."),
    _Limit("--keep-bytes", "keep_bytes", "N", "Bytes of these entries."),
)


def _limits(rows: Sequence[_Limit]) -> Callable[[_Command], _Command]:
    """Add the options of `rows` to a command. An option that was not given is None, so a file's value is kept."""

    def option(row: _Limit) -> Callable[[Any], Any]:
        text = f"{row.help}  [default: {getattr(_DEFAULTS, row.name)}]"
        return click.option(
            row.option, row.name, type=click.IntRange(*RANGES[row.name]), metavar=row.metavar, help=text
        )

    return lambda command: apply_options(command, map(option, rows))


def _address_option(option: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(option, metavar="HOST:PORT", help=text)


def _pem_option(option: str, text: str) -> Callable[[_Command], _Command]:
    return click.option(option, type=_FILE, metavar="PEM", help=text)


#: Commands with modules of their own, imported when they run, so that a daemon does not load them.
_ELSEWHERE: Final = {
    "status": ("cli.store.status:status", "Ask each node for its role, term, progress, disk and errors."),
    "ls": ("cli.store.znodes:ls", "List the children of a znode."),
    "get": ("cli.store.znodes:get", "Print the data of a znode."),
    "stat": ("cli.store.znodes:stat", "Print the stat of a znode."),
    "list": ("cli.store.members:list_members", "Show the members of a running store and their state."),
    "add": ("cli.store.members:add", "Add a node to a running store."),
    "remove": ("cli.store.members:remove", "Remove a node from a running store."),
    "transfer-leader": ("cli.store.members:transfer_leader", "Make another node the leader."),
    "backup": ("cli.store.backup:backup", "Write the state of a running store to a file."),
    "restore": ("cli.store.backup:restore", "Create data directories of a new store from a backup."),
    "verify": ("cli.store.files:verify", "Check and compare the directories of stopped nodes."),
    "dump-log": ("cli.store.files:dump_log", "Print the log of a stopped node."),
    "check-trace": ("cli.store.trace:check_trace", "Check whether the Raft events of all nodes are consistent."),
    "dump-snapshot": ("cli.store.files:dump_snapshot", "Print a snapshot or a backup."),
}


class _CoordGroup(click.Group):
    """Its own commands, and those of `_ELSEWHERE`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return its own commands first."""
        return [*super().list_commands(ctx), *_ELSEWHERE]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; None for an unknown name."""
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _ELSEWHERE[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any of them."""
        own = [(name, self.commands[name].get_short_help_str(WHOLE)) for name in super().list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([*own, *((name, entry[1]) for name, entry in _ELSEWHERE.items())])


@click.group(cls=_CoordGroup)
@global_options
def coord() -> None:
    """A node of the store (the ZooKeeper protocol, replicated with Raft), and its files."""


@coord.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read all settings from a ZooKeeper configuration file (zoo.cfg); other options override it.",
)
@click.option("--id", "node_id", type=int, metavar="N", help="This node's id, 1 to 127.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    callback=given_before,
    help="Directory of log and snapshots.",
)
@_address_option("--client-address", "Address for clients.")
@_address_option("--peer-address", "Address for the other nodes; needed with --peers.")
@click.option("--peers", metavar="ID=HOST:PORT,…", help="All nodes including this one; the same value on each node.")
@_address_option("--admin-address", "Metrics, health, readiness and status over HTTP.")
@click.option(
    "--admin-name",
    "admin_names",
    multiple=True,
    metavar="HOST",
    help="A host name under which the admin port is reached, beside addresses and this node's hosts. May be repeated.",
)
@click.option("--cluster", metavar="NAME", help="Name of the cluster, if --peers is not spelled alike on all nodes.")
@click.option("--observers", metavar="ID,…", help="Members of --peers that serve clients but do not vote.")
@click.option(
    "--join",
    metavar="HOST:PORT,…",
    help="Let an empty node join a running store: peer or client addresses of members, instead of --peers."
    " `rk coord add` admits the node.",
)
@click.option(
    "--super-digest",
    metavar="USER:DIGEST",
    help="The user with all permissions: base64 of SHA-1 of USER:PASSWORD, as in ZooKeeper.  [default: nobody]",
)
@click.option(
    "--super-digest-file",
    type=_FILE,
    metavar="FILE",
    help="The same in the first line of a file: other users of this machine can read command lines.",
)
@click.option(
    "--certs-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Credentials: the admin port then demands a token, except for /health and /ready, and clients may prove"
    " identities of the scheme rk.",
)
@click.option(
    "--require-auth",
    "required_schemes",
    metavar="SCHEME,…",
    help=f"Serve only clients that prove an identity of one of these schemes: {', '.join(REQUIRABLE_SCHEMES)}."
    "  [default: serve all]",
)
@click.option(
    "--reconfig/--no-reconfig",
    "reconfig_enabled",
    default=None,
    help="Whether super may change the members through this node.  [default: reconfig; with --config from the file]",
)
@click.option(
    "--linearizable-reads",
    is_flag=True,
    default=None,
    help="Let a majority confirm every read: never stale, but slower.",
)
@_limits(_LIMITS)
@click.option(
    "--enforce-quotas",
    is_flag=True,
    default=None,
    help="Reject writes that exceed hard limits below /zookeeper/quota. The same on all nodes.",
)
@click.option(
    "--words",
    metavar="WORD,…",
    help=f"Four-letter words that are answered, * for all.  [default: {','.join(sorted(DEFAULT_WORDS))}]",
)
@_limits(_LOG_LIMITS)
@click.option(
    "--read-only-mode",
    is_flag=True,
    default=None,
    help="Without a leader, serve reads to clients that accept read-only mode.",
)
@_address_option(
    "--secure-client-address",
    "Address for clients with TLS. Without --client-address, TLS is required.",
)
@_pem_option("--tls-cert", "This node's certificate for clients, with its chain.")
@_pem_option("--tls-key", "Key of the certificate, if it is in another file.")
@_pem_option("--tls-ca", "Authority of the clients' certificates.")
@click.option(
    "--tls-client-auth",
    type=click.Choice(["none", "want", "need"]),
    help="Whether clients must have a certificate.  [default: need with --tls-ca, else none]",
)
@_pem_option("--peer-tls-cert", "This node's certificate for the other nodes.")
@_pem_option("--peer-tls-key", "Key of the certificate, if it is in another file.")
@_pem_option("--peer-tls-ca", "Authority of the nodes' certificates, and of no others.")
@click.option(
    "--peer-tls-host-check/--no-peer-tls-host-check",
    default=None,
    help="Whether a node's certificate must name the host of its --peer-address, and its id if `rk certs` has made it,"
    " so that no node can pose as another.  [default: --peer-tls-host-check]",
)
@click.option("--peer-secret-file", type=_FILE, metavar="FILE", help="Secret that all nodes share, at least 16 bytes.")
@click.option(
    "--sasl-users",
    type=_FILE,
    metavar="FILE",
    help="Lines user:secret for authentication with SASL DIGEST-MD5.",
)
@click.option(
    "--fsync",
    type=click.Choice(["thread", "inline"]),
    help="Sync the log in a thread, or in the reactor loop (one core).  [default: thread]",
)
@click.option(
    "--trace",
    type=_FILE,
    metavar="FILE",
    help="Append this node's Raft events to FILE, for `rk coord check-trace`.  [default: none]",
)
@click.option("--drill-links", is_flag=True, default=None, hidden=True, help="Let `rk drill` cut this node off.")
@click.option("--insecure", is_flag=True, help="Serve everybody, also on addresses that other machines reach.")
@log_options
def run(config: Path | None, certs_dir: Path | None = None, *, insecure: bool = False, **given: Any) -> None:
    """Run a node until a signal arrives (SIGTERM, Ctrl-C).

    \b
    Alone:   rk coord run --id 1 --data-dir D --client-address 127.0.0.1:2181
    Joining: … --peer-address 127.0.0.1:2284 --join 127.0.0.1:2281
    Of three: … --peer-address 127.0.0.1:2281 --peers 1=127.0.0.1:2281,2=127.0.0.1:2282,3=127.0.0.1:2283
    """
    try:
        settings = _settings(config, {name: value for name, value in given.items() if value is not None})
        process.use_daemon(certs_dir, Principal(NODE, str(settings.node_id)))
        settings = _with_tls(settings)
        if not insecure:
            _check_exposed(settings, has_certs=certs_dir is not None, is_zoo_cfg=config is not None)
    except ConfigError as error:
        raise UsageFaultError(str(error)) from error
    from coord.server import service

    sys.exit(service.run(settings))


def _check_exposed(settings: StoreSettings, *, has_certs: bool, is_zoo_cfg: bool) -> None:
    """Raise ConfigError if strangers are served on an address that other machines reach. Settings of a zoo.cfg only
    cause a warning: ZooKeeper would accept them, and an existing ensemble must start."""
    try:
        check_exposed(settings, has_certs=has_certs)
    except ConfigError as error:
        if not is_zoo_cfg:
            raise
        click.echo(f"warning: as a ZooKeeper would by this file, {error}", err=True)


def _with_tls(settings: StoreSettings) -> StoreSettings:
    """Return the settings. If the certificates of --certs-dir are for every port, use them at ports without
    certificates of their own. Then there is no plain port."""
    files = process.tls_files()
    if files is None:
        return settings
    if settings.tls is None:
        settings = dataclasses.replace(settings, tls=files, secure_client_address=settings.client_address)
    return settings if settings.peer_tls is not None else dataclasses.replace(settings, peer_tls=files)


def _gather_tls(given: dict[str, Any]) -> None:
    """Combine the --tls options into one setting."""
    found = {name: given.pop(f"tls_{name}", None) for name in ("cert", "key", "ca", "client_auth")}
    if found["cert"] is not None:
        found["client_auth"] = found["client_auth"] or ("need" if found["ca"] else "none")
        given["tls"] = TlsFiles(**found)
    elif any(found.values()):
        raise ConfigError("--tls-cert is missing")
    peer = {name: given.pop(f"peer_tls_{name}", None) for name in ("cert", "key", "ca")}
    verify_host = given.pop("peer_tls_host_check", None)
    files = peer_tls(**peer, verify_host=verify_host)
    if files is not None:
        given["peer_tls"] = files


def _settings(config: Path | None, given: dict[str, Any]) -> StoreSettings:
    """Return the settings of file and options. Raise ConfigError."""
    _gather_tls(given)
    if config is None and "secure_client_address" in given:
        given.setdefault("client_address", given["secure_client_address"])
    for name in ("client_address", "secure_client_address", "peer_address", "admin_address"):
        if name in given:
            given[name] = parse_address(given[name], "--" + name.replace("_", "-"))
    if "join" in given:
        given["join"] = parse_join(given["join"])
    if "observers" in given:
        given["observers"] = parse_observers(given["observers"])
    if "peers" in given:
        given["peers"] = parse_peers(given["peers"])
    if "words" in given:
        given["words"] = parse_words(given["words"])
    if "required_schemes" in given:
        given["required_schemes"] = parse_schemes(given["required_schemes"])
    warnings: tuple[str, ...] = ()
    if "super_digest_file" in given:
        digest = given.pop("super_digest_file")
        if "super_digest" in given:
            raise ConfigError("--super-digest and --super-digest-file are both given; keep the file")
        warnings += warn_if_open(digest)
        given["super_digest"] = read_super_digest(digest)
    if "peer_secret_file" in given:
        secret = given.pop("peer_secret_file")
        warnings += warn_if_open(secret)
        given["peer_secret"] = read_peer_secret(secret)
    if "sasl_users" in given:
        warnings += warn_if_open(given["sasl_users"])
        given["sasl_users"] = read_users(given["sasl_users"])
    if config is not None:
        base = read_zoo_cfg(config)
        if "peers" in given:
            given["members"] = {}
        return StoreSettings(
            **{
                **{name: getattr(base, name) for name in base.__dataclass_fields__},
                **given,
                "warnings": base.warnings + warnings,
            }
        )
    for name, option in (("node_id", "--id"), ("data_dir", "--data-dir"), ("client_address", "--client-address")):
        if name not in given:
            raise ConfigError(f"{option} is missing (or --config FILE)")
    return StoreSettings(**given, warnings=warnings)
