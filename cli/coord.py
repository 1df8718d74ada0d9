"""`rk coord run`: a node of the store, in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from cli.errors import UsageFaultError
from coord.errors import ConfigError
from coord.server.config import (
    DEFAULT_WORDS,
    Settings,
    parse_address,
    parse_peers,
    parse_words,
)
from coord.server.zoo_cfg import read_zoo_cfg

_DEFAULTS = Settings(1, Path(), ("", 1))


@click.group()
def coord() -> None:
    """A node of the store: the ZooKeeper protocol, replicated by Raft."""


@coord.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Take everything from a ZooKeeper configuration file (zoo.cfg); other options override it.",
)
@click.option("--id", "node_id", type=int, metavar="N", help="This node's id, 1 to 127.")
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="Where log and snapshots are.")
@click.option("--client-address", metavar="HOST:PORT", help="Where clients connect.")
@click.option("--peer-address", metavar="HOST:PORT", help="Where the other nodes connect; needed with --peers.")
@click.option("--peers", metavar="ID=HOST:PORT,…", help="All nodes, this one included, alike on each of them.")
@click.option("--admin-address", metavar="HOST:PORT", help="Metrics, health, readiness and status over HTTP.")
@click.option("--cluster", metavar="NAME", help="Name of the cluster, if --peers is not spelled alike everywhere.")
@click.option("--tick-ms", type=int, help=f"Unit of session timeouts (2 to 20 ticks).  [default: {_DEFAULTS.tick_ms}]")
@click.option(
    "--max-connections-per-address",
    "connections_per_address_max",
    type=int,
    metavar="N",
    help=f"0: no bound.  [default: {_DEFAULTS.connections_per_address_max}]",
)
@click.option("--max-connections", "connections_max", type=int, metavar="N", help="0: no bound.  [default: 0]")
@click.option(
    "--max-outstanding",
    "outstanding_max",
    type=int,
    metavar="N",
    help=f"Unanswered requests per connection.  [default: {_DEFAULTS.outstanding_max}]",
)
@click.option(
    "--words",
    metavar="WORD,…",
    help=f"Four-letter words that are answered, * for all.  [default: {','.join(sorted(DEFAULT_WORDS))}]",
)
@click.option(
    "--snapshot-entries",
    type=int,
    metavar="N",
    help=f"Log entries between snapshots.  [default: {_DEFAULTS.snapshot_entries}]",
)
@click.option(
    "--keep-entries",
    type=int,
    metavar="N",
    help=f"Entries kept behind a snapshot for slow nodes.  [default: {_DEFAULTS.keep_entries}]",
)
@click.option(
    "--fsync",
    type=click.Choice(["thread", "inline"]),
    help="Who syncs the log: a thread of its own, or the loop (one core).  [default: thread]",
)
def run(config: Path | None, **given: Any) -> None:
    """Run a node until it is told to stop (SIGTERM, Ctrl-C).

    \b
    Alone:   rk coord run --id 1 --data-dir D --client-address 127.0.0.1:2181
    Of three: … --peer-address 127.0.0.1:2281 --peers 1=127.0.0.1:2281,2=127.0.0.1:2282,3=127.0.0.1:2283
    """
    try:
        settings = _settings(config, {name: value for name, value in given.items() if value is not None})
    except ConfigError as error:
        raise UsageFaultError(str(error)) from error
    from coord.server import service

    sys.exit(service.run(settings))


def _settings(config: Path | None, given: dict[str, Any]) -> Settings:
    """What file and options say together. Raises ConfigError."""
    for name in ("client_address", "peer_address", "admin_address"):
        if name in given:
            given[name] = parse_address(given[name], "--" + name.replace("_", "-"))
    if "peers" in given:
        given["peers"] = parse_peers(given["peers"])
    if "words" in given:
        given["words"] = parse_words(given["words"])
    if config is not None:
        base = read_zoo_cfg(config)
        return Settings(**{**{name: getattr(base, name) for name in base.__dataclass_fields__}, **given})
    for name, option in (("node_id", "--id"), ("data_dir", "--data-dir"), ("client_address", "--client-address")):
        if name not in given:
            raise ConfigError(f"{option} is missing (or --config FILE)")
    return Settings(**given)
