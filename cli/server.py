"""`rk server run`: a region server in this process."""

from __future__ import annotations

from pathlib import Path

import click

from cli.errors import CliError
from cli.options import Globals, access_options
from regions.layout import DEFAULT_ROOT


@click.group()
def server() -> None:
    """A region server."""


@server.command()
@click.option("--store", required=True, envvar="RK_STORE", metavar="HOST:PORT,…", help="The store's client addresses.")
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="This server's own directory: its identity and its lock.",
)
@click.option(
    "--shared-dir",
    required=True,
    type=click.Path(path_type=Path),
    help="The directory that all region servers share: the regions.",
)
@click.option(
    "--address", required=True, metavar="HOST:PORT", help="Where masters reach this server; port 0 takes a free one."
)
@click.option("--admin-address", metavar="HOST:PORT", help="Serve /metrics, /health, /ready and /status here.")
@click.option("--rack", default="default", show_default=True, help="Rack, for placement.")
@click.option("--weight", default=1.0, show_default=True, help="Share of the regions, relative to other servers.")
@click.option("--group", default="", help="Group of servers that this one belongs to.")
@click.option("--root", default=DEFAULT_ROOT, show_default=True, help="Znode below which the cluster lives.")
@click.option(
    "--session-timeout-ms",
    default=3000,
    show_default=True,
    help="Silence after which the store gives this server's regions away.",
)
@click.option("--threads", default=4, show_default=True, help="Threads that open and close regions.")
@click.option(
    "--opener",
    type=click.Choice(["kv", "directories", "none"]),
    default="kv",
    show_default=True,
    help="What a region is: key-value data, an empty directory, or nothing (for benchmarks).",
)
@access_options
@click.pass_obj
def run(
    given: Globals,
    store: str,
    data_dir: Path,
    shared_dir: Path,
    address: str,
    admin_address: str | None,
    rack: str,
    weight: float,
    group: str,
    root: str,
    session_timeout_ms: int,
    threads: int,
    opener: str,
) -> int:
    """Open and close regions as the active master orders, until a signal comes.

    SIGTERM closes the regions and ends the session, so that their new servers have them at once.
    """
    from coord.errors import ConfigError
    from regionserver import service
    from regionserver.config import Settings, parse_address

    try:
        host, port = parse_address(address, "--address")
        admin = parse_address(admin_address, "--admin-address") if admin_address else (None, 0)
        settings = Settings(
            store=store.removeprefix("zk://"),
            data_dir=data_dir,
            shared_dir=shared_dir,
            host=host,
            port=port,
            admin_host=admin[0],
            admin_port=admin[1],
            rack=rack,
            weight=weight,
            group=group,
            root=root.rstrip("/"),
            session_timeout_ms=session_timeout_ms,
            threads=threads,
            opener=opener,
            access=given.access(),
        )
        return service.run(settings)
    except ConfigError as error:
        raise CliError(str(error)) from error
