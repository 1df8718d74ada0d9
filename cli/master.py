"""`rk master`: a master, active or standby."""

from __future__ import annotations

from pathlib import Path

import click

from cli.common.options import SECONDS, Globals, daemon_options, global_options, spark_options
from cli.common.staleness import duration_ms
from cli.common.views.help import CommandGroup
from coord.errors import ConfigError
from master.settings import ENGINES, MasterSettings, limits_of


@click.group("master", cls=CommandGroup)
@global_options
def master() -> None:
    """A master: decides which server gets which region."""


def _address(_context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{value!r} is not host:port", param=parameter)
    return host.strip("[]"), int(port)


@master.command("run")
@daemon_options(data_dir="Directory of this master's uuid.", silence="another master takes over")
@click.option(
    "--address", required=True, metavar="HOST:PORT", callback=_address, help="Address for clients and servers."
)
@click.option(
    "--admin-address",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve the live page, /metrics, /health, /ready and /status here.",
)
@click.option(
    "--admin-name",
    "admin_names",
    multiple=True,
    metavar="HOST",
    help="A host name under which the admin port is reached, beside addresses and --address. May be repeated.",
)
@click.option(
    "--admin-hide-keys", is_flag=True, help="On the live page, show names in place of the keys of regions and rows."
)
@click.option(
    "--purge-after",
    default="1h",
    show_default=True,
    metavar="TIME",
    help="Keep the rows of deleted tables for this time: 90s, 10m, 1h.",
)
@click.option(
    "--forget-after",
    default="168h",
    show_default=True,
    metavar="TIME",
    help="Then keep the records of a deleted table without rows for this time. Its id is never used again.",
)
@click.option(
    "--min-servers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Region servers that a cluster startup waits for.",
)
@click.option(
    "--mirror/--no-mirror",
    default=True,
    show_default=True,
    help="As a standby keep the catalog in memory: quick takeover, answers reads.",
)
@click.option(
    "--plan-engine", type=click.Choice(ENGINES), default="auto", show_default=True, help="Engine of bulk plans."
)
@click.option(
    "--plan-deadline-s",
    type=SECONDS,
    default=120.0,
    show_default=True,
    help="Then another engine takes over.",
)
@spark_options("for bulk plans")
@click.option("--plan-dir", type=click.Path(path_type=Path), help="Directory of plans; a Spark cluster must share it.")
@click.option(
    "--plan-blocks",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory with the table blocks (region_id, host, bytes): bulk plans prefer servers on these hosts.",
)
@click.option(
    "--start-timeout-s",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="Time limit for an ordered open to begin.",
)
@click.option(
    "--open-timeout-s",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="Time limit between progress reports of an open.",
)
@click.option(
    "--attempts-max",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Failed opens after which a region is parked.",
)
@click.option(
    "--close-timeout-s",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="A longer close is reported as a problem.",
)
@click.option(
    "--fence-after-s",
    type=SECONDS,
    default=300.0,
    show_default=True,
    help="A server that takes longer to close a region is fenced and loses all regions; 0: never.",
)
@click.option(
    "--spark-min",
    type=click.IntRange(0),
    default=0,
    help="Replicas from which auto uses Spark; below, one process plans to the same bytes.  "
    "[default: by size, deadline and machine]",
)
@click.option(
    "--create-timeout-s",
    type=SECONDS,
    default=60.0,
    show_default=True,
    help="A new region that no server has opened in this time is replaced.",
)
@click.option(
    "--replacements-max",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Replacements per range; then the region is parked.",
)
@click.option(
    "--add-timeout-s",
    type=SECONDS,
    default=600.0,
    show_default=True,
    help="A new member of a tablet that makes no progress for this long is given up.",
)
@click.option(
    "--balance-period-s",
    type=SECONDS,
    default=30.0,
    show_default=True,
    help="Seconds between rounds of the balancer; 0: never.",
)
@click.pass_obj
def run(
    given: Globals,
    store: str,
    data_dir: Path,
    address: tuple[str, int],
    admin_address: tuple[str, int] | None,
    admin_names: tuple[str, ...],
    admin_hide_keys: bool,
    root: str,
    session_timeout_ms: int,
    insecure: bool,
    purge_after: str,
    forget_after: str,
    min_servers: int,
    mirror: bool,
    plan_engine: str,
    plan_deadline_s: float,
    spark_master: str,
    spark_conf: tuple[str, ...],
    plan_dir: Path | None,
    plan_blocks: Path | None,
    spark_min: int,
    balance_period_s: float,
    start_timeout_s: float,
    open_timeout_s: float,
    attempts_max: int,
    close_timeout_s: float,
    fence_after_s: float,
    create_timeout_s: float,
    replacements_max: int,
    add_timeout_s: float,
) -> None:
    """Run a master in the foreground until SIGTERM."""
    from cli.common.access import certs_dir_named, check_exposed, store_access
    from master import service

    check_exposed(address[0], certs_dir_named(given), insecure=insecure)
    try:
        settings = MasterSettings(
            store=store,
            data_dir=data_dir,
            host=address[0],
            port=address[1],
            admin_host=admin_address[0] if admin_address else "",
            admin_port=admin_address[1] if admin_address else 0,
            admin_names=admin_names,
            admin_hide_keys=admin_hide_keys,
            root=root,
            session_timeout_ms=session_timeout_ms,
            min_servers=min_servers,
            purge_after_s=duration_ms(purge_after, "--purge-after") / 1000,
            forget_after_s=duration_ms(forget_after, "--forget-after") / 1000,
            mirror=mirror,
            plan_engine=plan_engine,
            plan_deadline_s=plan_deadline_s,
            spark_master=spark_master,
            spark_conf=spark_conf,
            plan_dir=plan_dir,
            plan_blocks=plan_blocks,
            spark_min=spark_min,
            balance_period_s=balance_period_s,
            access=store_access(given),
            certs_dir=certs_dir_named(given),
            limits=limits_of(
                start_timeout_s,
                open_timeout_s,
                attempts_max,
                close_timeout_s,
                fence_after_s,
                create_timeout_s,
                replacements_max,
                add_timeout_s,
            ),
        )
        status = service.run(settings)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    raise SystemExit(status)
