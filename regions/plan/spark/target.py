"""Where a bulk plan's Spark is: what a master URL means, what using it takes, and whether anything answers there.

    local  local[4]  local[*]             in the job's own process
    spark://HOST:PORT[,HOST:PORT...]      a standalone cluster; several for one with standby masters
    yarn                                  the YARN cluster that HADOOP_CONF_DIR or YARN_CONF_DIR describes
    k8s://https://HOST:PORT               a Kubernetes API server
    sc://HOST[:PORT][/;NAME=VALUE...]     a Spark Connect server

Whoever starts a job looks here first, so that a wrong word, a missing program or a silent address is one sentence at
once and not a stack of Java after a minute. Spark itself is not imported.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import re
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from regions.plan.problem.model import PlanError

DEFAULT: Final = "local[*]"
#: Port of a Spark Connect server that the URL does not name.
CONNECT_PORT: Final = 15002
#: Longest wait for one address to take a connection.
REACH_S: Final = 5.0
#: Where a process finds the driver's JVM that `spark-submit` has started for it.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"

_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|local-cluster\[\d+,\s*\d+,\s*\d+\]")
_NEEDED_BY_CONNECT: Final = (("grpc", "grpcio"), ("grpc_status", "grpcio-status"), ("zstandard", "zstandard"))


class BadTarget(PlanError):  # noqa: N818 - an answer to what somebody typed
    """What was given is no Spark master URL, or no setting of Spark."""


class TargetKind(enum.Enum):
    """What runs the job's tasks."""

    LOCAL = "local"
    STANDALONE = "standalone"
    YARN = "yarn"
    KUBERNETES = "kubernetes"
    CONNECT = "connect"


class SparkTarget(NamedTuple):
    """A Spark master URL, understood; `hosts`: where something must answer, any one of them."""

    url: str
    kind: TargetKind
    hosts: tuple[tuple[str, int], ...] = ()

    @property
    def has_executors(self) -> bool:
        """The tasks run in other processes, on this or other machines, that the job's own code must be sent to."""
        return self.kind is not TargetKind.LOCAL

    @property
    def is_here(self) -> bool:
        """Everything that the URL names is this very machine."""
        return self.kind is TargetKind.LOCAL or (bool(self.hosts) and all(_is_loopback(host) for host, _ in self.hosts))


def parse_target(url: str) -> SparkTarget:
    """Understand a master URL. Raises: BadTarget."""
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
    """Host and port. Raises: BadTarget."""
    try:
        found = urlsplit(f"//{text}")
        host, port = found.hostname, found.port or default_port
    except ValueError:
        host, port = None, 0
    if not host or not port:
        raise BadTarget(f"{url!r} is no Spark master: {text!r} is not HOST:PORT")
    return host, port


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def parse_conf(settings: Iterable[str]) -> dict[str, str]:
    """Settings of Spark given as `spark.NAME=VALUE`. Raises: BadTarget."""
    found = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not re.fullmatch(r"spark\.[\w.-]+", name):
            raise BadTarget(f"{setting!r} is no setting of Spark: spark.NAME=VALUE")
        found[name] = value
    return found


def missing(target: SparkTarget) -> str:
    """What using this Spark lacks here, as far as can be told without starting anything; empty if nothing."""
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


def unreachable(target: SparkTarget, timeout_s: float = REACH_S) -> str:
    """Why nothing answers at the target's addresses; empty if something does, or there is nothing to ask."""
    reasons = []
    for host, port in target.hosts:
        try:
            socket.create_connection((host, port), timeout_s).close()
            return ""
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    return f"nothing answers at {target.url} ({'; '.join(reasons)})" if reasons else ""


def job_words(
    input_dir: Path, output_dir: Path, master: str, conf: Iterable[str] = (), *, plan_id: str = ""
) -> list[str]:
    """Arguments of a Spark job that plans one directory into another and ends with its parent process."""
    words = ["--input", str(input_dir), "--output", str(output_dir), "--master", master, "--die-with-parent"]
    for setting in conf:
        words += ["--conf", setting]
    return [*words, "--plan-id", plan_id] if plan_id else words


def late_words(deadline_s: float, stage: str) -> str:
    """What is said of a job that had to be ended: how long it was given, and how far it had come."""
    return f"no plan within {deadline_s:g} s (the last that was heard of the job: {stage or 'nothing'})"
