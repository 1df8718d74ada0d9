"""The Spark that runs a bulk plan: its master URL, its requirements, and whether it is reachable.

    local  local[4]  local[*]             in the job's own process
    spark://HOST:PORT[,HOST:PORT...]      a standalone cluster; several for one with standby masters
    yarn                                  the YARN cluster that HADOOP_CONF_DIR or YARN_CONF_DIR describes
    k8s://https://HOST:PORT               a Kubernetes API server
    sc://HOST[:PORT][/;NAME=VALUE...]     a Spark Connect server

These checks run before a job starts. So a wrong URL, a missing program or an unreachable address is reported in one
sentence at once, and not by a Java stack trace after a minute. This module does not import Spark.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from coord.hosts import is_loopback
from regions.plan.problem.model import PlanError

DEFAULT: Final = "local[*]"
#: Default port of a Spark Connect server.
CONNECT_PORT: Final = 15002
#: Timeout of a connection to one address.
REACH_S: Final = 5.0
#: Environment variable with the port of the JVM that `spark-submit` has started for the driver.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"

_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|local-cluster\[\d+,\s*\d+,\s*\d+\]")
_NEEDED_BY_CONNECT: Final = (("grpc", "grpcio"), ("grpc_status", "grpcio-status"), ("zstandard", "zstandard"))


class BadTarget(PlanError):  # noqa: N818 - an answer to what somebody typed
    """Raised for an invalid Spark master URL or an invalid Spark setting."""


class TargetKind(enum.Enum):
    """Kinds of Spark clusters."""

    LOCAL = "local"
    STANDALONE = "standalone"
    YARN = "yarn"
    KUBERNETES = "kubernetes"
    CONNECT = "connect"


class SparkTarget(NamedTuple):
    """A parsed Spark master URL. At least one of `hosts` must be reachable."""

    url: str
    kind: TargetKind
    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def has_executors(self) -> bool:
        """True if tasks run in other processes, so that the job's code must be sent to them."""
        return self.kind is not TargetKind.LOCAL

    @property
    def is_here(self) -> bool:
        """True if the URL names only this machine."""
        return self.kind is TargetKind.LOCAL or (bool(self.hosts) and all(is_loopback(host) for host, _ in self.hosts))


def parse_target(url: str) -> SparkTarget:
    """Parse a master URL. Raise BadTarget."""
    if _LOCAL.fullmatch(url):
        return SparkTarget(url, TargetKind.LOCAL)
    if url == "yarn":
        return SparkTarget(url, TargetKind.YARN)
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "spark":
        return SparkTarget(url, TargetKind.STANDALONE, tuple(_address(url, one) for one in rest.split(",")))
    if separator and scheme == "k8s":
        api = urlsplit(rest if "://" in rest else f"https://{rest}")
        return SparkTarget(
            url, TargetKind.KUBERNETES, (_address(url, api.netloc, 80 if api.scheme == "http" else 443),)
        )
    if separator and scheme == "sc":
        return SparkTarget(url, TargetKind.CONNECT, (_address(url, rest.partition("/")[0], CONNECT_PORT),))
    raise BadTarget(
        f"{url!r} is no Spark master: local[*], spark://HOST:PORT, yarn, k8s://https://HOST:PORT or sc://HOST:PORT"
    )


def _address(url: str, text: str, default_port: int = 0) -> tuple[str, int]:
    """Return host and port. Raise BadTarget."""
    try:
        found = urlsplit(f"//{text}")
        host, port = found.hostname, found.port or default_port
    except ValueError:
        host, port = None, 0
    if not host or not port:
        raise BadTarget(f"{url!r} is no Spark master: {text!r} is not HOST:PORT")
    return host, port


def parse_conf(settings: Iterable[str]) -> dict[str, str]:
    """Parse settings of Spark given as `spark.NAME=VALUE`. Raise BadTarget."""
    found = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not re.fullmatch(r"spark\.[\w.-]+", name):
            raise BadTarget(f"{setting!r} is no setting of Spark: spark.NAME=VALUE")
        found[name] = value
    return found


def missing(target: SparkTarget) -> str:
    """Return what is missing on this machine for this Spark, as far as can be checked without starting it; or ""."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed"
    if target.kind is TargetKind.CONNECT:
        absent = [package for module, package in _NEEDED_BY_CONNECT if importlib.util.find_spec(module) is None]
        return f"Spark Connect needs {', '.join(absent)}, not installed here (extra 'connect')" if absent else ""
    if SUBMITTED in os.environ:
        return ""
    home = os.environ.get("JAVA_HOME", "")
    if home and not Path(home, "bin", "java").is_file():
        return f"there is no Java: JAVA_HOME is {home} but has no bin/java"
    if not home and shutil.which("java") is None:
        return "Java is not installed: there is no java on PATH and no JAVA_HOME"
    if target.kind is TargetKind.YARN and not any(
        os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
    ):
        return "yarn needs HADOOP_CONF_DIR or YARN_CONF_DIR, the directory with the cluster's configuration"
    return ""


def unreachable(target: SparkTarget, connect: Callable[[str, int], None]) -> str:
    """Return why no address of the target accepts a connection; "" if one does, or if the target has no address.

    `connect` opens and closes a connection to a host and port. It raises OSError if that fails within REACH_S.
    """
    reasons = []
    for host, port in target.hosts:
        try:
            connect(host, port)
            return ""
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    return f"nothing answers at {target.url} ({'; '.join(reasons)})" if reasons else ""


def job_words(
    input_dir: Path, output_dir: Path, master: str, conf: Iterable[str] = (), *, plan_id: str = ""
) -> list[str]:
    """Return the arguments of a Spark job that plans one directory into another and ends with its parent process."""
    words = ["--input", str(input_dir), "--output", str(output_dir), "--master", master, "--die-with-parent"]
    for setting in conf:
        words += ["--conf", setting]
    return [*words, "--plan-id", plan_id] if plan_id else words


def late_words(deadline_s: float, stage: str) -> str:
    """Return the message for a job that was killed at its deadline, with its last progress."""
    return f"no plan within {deadline_s:g} s (last progress of the job: {stage or 'none'})"
