"""A Spark Connect server as a process: Spark behind gRPC, with executors that do not have our modules."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.compat import jvm
from tests.compat.spark_ha import environment, spark_daemon
from tests.spark.standalone import START_S, bare_python
from tests.support.helpers import daemon, eventually, free_ports


def connect_missing() -> str:
    """Return why such a server or its client cannot run here; empty if they can."""
    if importlib.util.find_spec("grpc") is None:
        return "grpcio is not installed (extra 'connect')"
    folder = jvm.jars_folder()
    if folder is None or not list(folder.glob("spark-connect_*.jar")):
        return jvm.missing() or "pyspark's jars have no Spark Connect"
    return jvm.missing()


@contextlib.contextmanager
def connect_server(folder: Path, master: str = "local[2]") -> Iterator[str]:
    """Yield the URL of a server whose tasks run on `master`."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    options = {
        "spark.master": master,
        "spark.app.name": "connect",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = spark_daemon(options, "org.apache.spark.sql.connect.service.SparkConnectServer", heap_mb=1024)
    surroundings = {**environment(), "PYSPARK_PYTHON": str(bare_python(folder)), "PYTHONPATH": ""}
    log = folder / "connect.log"
    with daemon(command, log=log, env=surroundings, cwd=folder) as process:

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True

        try:
            eventually(answers, START_S, "the Spark Connect server")
            yield f"sc://127.0.0.1:{port}"
        except BaseException:
            print(f"--- connect.log\n{log.read_text()[-5000:]}")  # noqa: T201
            raise
