"""Settings of a master from its command line, validated once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from coord.client.access import OPEN_ACCESS, StoreAccess
from coord.env import SECONDS_MAX
from coord.errors import ConfigError
from coord.server.config.addresses import EVERY_ADDRESS
from regions.cluster.limits import AssignerConfig, BalancerConfig
from regions.records.znodes import DEFAULT_ROOT

ENGINES: Final = ("auto", "greedy", "flow", "spark")


def limits_of(
    start_timeout_s: float,
    open_timeout_s: float,
    attempts_max: int,
    close_timeout_s: float,
    fence_after_s: float,
    create_timeout_s: float = 60.0,
    replacements_max: int = 3,
    add_timeout_s: float = 600.0,
) -> AssignerConfig:
    """Return the assigner's limits from command-line values. Raise ConfigError that names the option."""
    for option, value in (
        ("--start-timeout-s", start_timeout_s),
        ("--open-timeout-s", open_timeout_s),
        ("--close-timeout-s", close_timeout_s),
        ("--create-timeout-s", create_timeout_s),
        ("--add-timeout-s", add_timeout_s),
    ):
        if not 0 < value <= SECONDS_MAX:
            raise ConfigError(f"{option} {value:g} is out of range: it must be above 0 and at most {SECONDS_MAX}")
    if attempts_max < 1:
        raise ConfigError(f"--attempts-max {attempts_max} is below 1: a region needs an attempt to open")
    if replacements_max < 0:
        raise ConfigError(
            f"--replacements-max {replacements_max} is below 0; give 0 to park regions instead of replacing them"
        )
    usual = AssignerConfig()
    least_s = usual.resend_ms / 1000
    if fence_after_s and not least_s <= fence_after_s <= SECONDS_MAX:
        raise ConfigError(
            f"--fence-after-s {fence_after_s:g} is out of range: give 0 to never fence, or {least_s:g} to {SECONDS_MAX}"
        )
    return AssignerConfig(
        start_timeout_ms=int(start_timeout_s * 1000),
        open_timeout_ms=int(open_timeout_s * 1000),
        attempts_max=attempts_max,
        close_timeout_ms=int(close_timeout_s * 1000),
        fence_after_ms=int(fence_after_s * 1000),
        create_timeout_ms=int(create_timeout_s * 1000),
        replacements_max=replacements_max,
        add_timeout_ms=int(add_timeout_s * 1000),
    )


class MasterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one master. The constructor raises ConfigError for inconsistent values."""

    #: The store's client addresses, "host:port,host:port".
    store: str
    data_dir: Path
    host: str
    port: int
    admin_host: str = ""
    #: 0: no admin port.
    admin_port: int = 0
    #: Host names under which browsers and scrapers reach the admin port, beside addresses and `host`.
    admin_names: tuple[str, ...] = ()
    #: Show names in place of the keys of regions and rows on the live page.
    admin_hide_keys: bool = False
    root: str = DEFAULT_ROOT
    session_timeout_ms: int = 3_000
    #: A cluster startup assigns no region before this many region servers have registered (RT-03).
    min_servers: int = 1
    #: Time for which the rows of a deleted table are kept. Until then `rk table undelete` restores the table.
    purge_after_s: float = 3_600.0
    #: Time for which the records of a deleted table are kept after its rows were removed.
    forget_after_s: float = 7 * 86_400.0
    #: With min_servers 1, a startup waits until no server has registered for this long.
    registration_pause_ms: int = 500
    #: Keep a mirror of the catalog on a standby, to take over without loading the store and to answer reads.
    mirror: bool = True
    #: auto: the best engine that is expected to meet the deadline on this machine (`regions.plan.choice`).
    plan_engine: str = "auto"
    plan_deadline_s: float = 120.0
    spark_master: str = "local[*]"
    #: Settings of Spark, NAME=VALUE.
    spark_conf: tuple[str, ...] = ()
    #: Directory of plans and their inputs; None: a directory below data_dir. All hosts of a Spark cluster must share
    #: the directory under the same path.
    plan_dir: Path | None = None
    #: Directory with the table `blocks`: bytes of each region on each host. Read for each plan (FW-05).
    plan_blocks: Path | None = None
    #: Number of replicas from which on `auto` uses Spark. Smaller plans are computed in one process, to the same bytes.
    #: 0: `regions.plan.choice` decides.
    spark_min: int = 0
    #: Seconds between rounds of the balancer; 0: only on an operator's request (RT-14).
    balance_period_s: float = 30.0
    balancer: BalancerConfig = BalancerConfig()
    #: Timeouts and attempts of the assigner.
    limits: AssignerConfig = AssignerConfig()
    #: Connection settings for the store.
    access: StoreAccess = OPEN_ACCESS
    #: Directory with the credentials of this daemon (`coord.security`); None: the daemon serves everybody.
    certs_dir: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError that names the option."""
        if not self.store:
            raise ConfigError("--store names no address")
        if self.plan_engine not in ENGINES:
            raise ConfigError(f"--plan-engine {self.plan_engine!r} is unknown; choose one of {', '.join(ENGINES)}")
        if not 0 <= self.port <= 65535 or not 0 <= self.admin_port <= 65535:
            raise ConfigError(f"ports must be between 0 and 65535, not {self.port} and {self.admin_port}")
        if self.session_timeout_ms < 500:
            raise ConfigError(f"--session-timeout-ms {self.session_timeout_ms} is below 500")
        if self.min_servers < 1:
            raise ConfigError(f"--min-servers {self.min_servers} is below 1")
        if self.spark_min < 0:
            raise ConfigError(f"--spark-min {self.spark_min} is below 0; give 0 to choose by size")
        self._check_spark()
        if self.plan_deadline_s <= 0:
            raise ConfigError(f"--plan-deadline-s {self.plan_deadline_s} is not positive")
        if self.balance_period_s < 0:
            raise ConfigError(f"--balance-period-s {self.balance_period_s} is below 0")
        if self.root and (not self.root.startswith("/") or self.root.endswith("/")):
            raise ConfigError(f"--root {self.root!r} must begin with a slash and not end with one")

    @property
    def registered_admin_host(self) -> str:
        """Return the host of the admin port for this master's registration, "" if `host` leads there, too."""
        return "" if self.admin_host in (self.host, *EVERY_ADDRESS) else self.admin_host

    def _check_spark(self) -> None:
        from regions.plan.spark.target import BadTarget, parse_conf, parse_target  # imports NumPy, slow for `rk --help`

        try:
            parse_target(self.spark_master)
            parse_conf(self.spark_conf)
        except BadTarget as error:
            raise ConfigError(f"--spark-master or --spark-conf: {error}") from error
