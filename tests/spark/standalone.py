"""A standalone Spark cluster of separate processes: one master, two workers, and executors that do not have our
modules.

The executors' Python is this interpreter without editable installs, so RegionKeeper cannot be imported there unless the
job ships it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.compat import jvm
from tests.compat.spark_ha import environment, spark_daemon
from tests.support.helpers import daemon, eventually, free_ports

WORKERS = 2
#: Time limit until a JVM is up and registered, on a busy machine.
START_S = 240.0


def bare_python(folder: Path) -> Path:
    """Return an interpreter with numpy, pyarrow, ortools and the like, but without RegionKeeper."""
    script = folder / "bare-python"
    packages = sysconfig.get_paths()["platlib"]
    # -S: the editable install is put into sys.path by site.py, and by nothing else.
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n', encoding="ascii"
    )
    script.chmod(0o755)
    return script


class Standalone:
    """One Spark master and two workers, each with one core."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port, self._web_port = free_ports(2)
        self.url = f"spark://127.0.0.1:{self.port}"
        self.python = bare_python(folder)
        #: Settings that a job needs on this one machine.
        self.conf = [f"spark.pyspark.python={self.python}", "spark.executor.memory=600m"]
        self._running = contextlib.ExitStack()
        self._workers: dict[int, contextlib.ExitStack] = {}

    def start(self) -> None:
        """Start all processes. Return when a job could run."""
        ports = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._web_port)]
        options = {"spark.master.rest.enabled": "false"}
        command = spark_daemon(options, "org.apache.spark.deploy.master.Master", *ports)
        self._running.enter_context(self._daemon(command, "master"))
        eventually(lambda: self.page()["status"] == "ALIVE", START_S, "the Spark master")
        for number in range(WORKERS):
            self.start_worker(number)
        self.wait_workers(WORKERS)

    def start_worker(self, number: int) -> None:
        """Start one worker. Do not wait."""
        port, web_port = free_ports(2)
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work{number}")]
        ports = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        command = spark_daemon({}, "org.apache.spark.deploy.worker.Worker", *size, *ports, self.url)
        running = self._workers[number] = contextlib.ExitStack()
        running.enter_context(self._daemon(command, f"worker{number}"))

    def kill_worker(self, number: int) -> None:
        """Kill a worker with kill -9, with its executors."""
        self._workers.pop(number).close()

    def mend(self) -> None:
        """Start the workers that were killed."""
        for number in range(WORKERS):
            if number not in self._workers:
                self.start_worker(number)
        self.wait_workers(WORKERS)

    def wait_workers(self, number: int) -> None:
        """Wait until exactly that many workers are registered."""
        eventually(lambda: self._alive() == number, START_S, f"{number} workers")

    def _alive(self) -> int:
        return sum(one["state"] == "ALIVE" for one in self.page()["workers"])

    def _daemon(self, command: list[str], name: str) -> contextlib.AbstractContextManager[Any]:
        # The daemons' environment has no path to our sources, because executors inherit it.
        surroundings = {**environment(), "PYTHONPATH": ""}
        return daemon(command, log=self.folder / f"{name}.log", env=surroundings, cwd=self.folder)

    def page(self) -> dict[str, Any]:
        """Return the status page of the Spark master. Raise OSError without an answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=5) as answer:
            text = answer.read()
        try:
            page: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise OSError("the page is not ready: the Spark master still starts its pages") from error
        return page

    def finished(self) -> list[str]:
        """Return the names of the applications that have finished here."""
        return [f"{one['name']} {one['state']}" for one in self.page()["completedapps"]]

    def close(self) -> None:
        """Kill all processes."""
        for running in self._workers.values():
            running.close()
        self._running.close()


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """Yield a running cluster. Print its daemons' logs when the test fails."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster
    except BaseException:
        for log in [*sorted(folder.glob("*.log")), *sorted(folder.glob("work*/*/*/stderr"))]:
            print(f"--- {log.relative_to(folder)}\n{log.read_text()[-3000:]}")  # noqa: T201
        raise
    finally:
        cluster.close()


def spark_missing() -> str:
    """Return why such a cluster cannot run here; empty if it can."""
    return jvm.missing()
