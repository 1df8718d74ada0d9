"""Spark's standalone masters with recoveryMode=ZOOKEEPER on our store: their processes, and the content of their web
pages.

Two masters elect a leader and keep applications and workers in the store; one worker runs a job. All processes come
from pyspark's jars and are started as Spark's scripts start them, on separate ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.compat import jvm
from tests.support.helpers import daemon, eventually, free_ports

#: A job of `tasks` tasks one after the other. Each task reports its start and waits for permission to finish.
_DRIVER = """
import os, sys, threading
from pyspark import SparkConf, SparkContext

master, folder, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])

def task(number):
    open(os.path.join(folder, f"begun-{number}"), "w").close()
    pause = threading.Event()
    while number > 0 and not os.path.exists(os.path.join(folder, "go")):
        pause.wait(0.1)
    return number * number

conf = SparkConf().setMaster(master).setAppName("squares")
conf.set("spark.ui.enabled", "false").set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
conf.set("spark.executor.memory", "512m").set("spark.cores.max", "1")
context = SparkContext(conf=conf)
print("SUM", context.parallelize(range(tasks), tasks).map(task).sum(), flush=True)
context.stop()
"""


class SparkMaster:
    """One standalone master that can be killed."""

    def __init__(self, folder: Path, name: str, store: str, more: Mapping[str, str]) -> None:
        """`more`: further system properties."""
        self.port, self.web_port = free_ports(2)
        self._more = more
        self._log = folder / f"{name}.log"
        self._store = store
        self._running = contextlib.ExitStack()

    def start(self) -> None:
        """Start the master. Do not wait."""
        options = {
            "spark.deploy.recoveryMode": "ZOOKEEPER",
            "spark.deploy.zookeeper.url": self._store,
            "spark.deploy.zookeeper.dir": "/spark",
            "spark.master.rest.enabled": "false",
            **self._more,
        }
        main = "org.apache.spark.deploy.master.Master"
        ports = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web_port)]
        self._running.enter_context(daemon(spark_daemon(options, main, *ports), log=self._log, env=environment()))

    def kill(self) -> None:
        """Kill the master as with kill -9."""
        self._running.close()

    def page(self) -> dict[str, Any]:
        """Return its web page: status, workers, applications. Raise OSError without an answer."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=5) as answer:
            page: dict[str, Any] = json.load(answer)
            return page

    def status(self) -> str:
        """Return STANDBY, RECOVERING, COMPLETING_RECOVERY or ALIVE."""
        return str(self.page()["status"])


class SparkCluster:
    """Two masters and a worker on a store."""

    def __init__(self, folder: Path, store: str, more: Mapping[str, str] | None = None) -> None:
        """`more`: further system properties of the masters."""
        self.folder = folder
        self.masters = [SparkMaster(folder, f"master{i}", store, more or {}) for i in (1, 2)]
        self._running = contextlib.ExitStack()

    @property
    def url(self) -> str:
        """Return the URL for workers and drivers."""
        return "spark://" + ",".join(f"127.0.0.1:{master.port}" for master in self.masters)

    def active(self, timeout_s: float = 60) -> SparkMaster:
        """Return the active master, once the worker is registered there."""

        def found() -> SparkMaster | None:
            for master in self.masters:
                with contextlib.suppress(OSError):
                    page = master.page()
                    if page["status"] == "ALIVE" and [w for w in page["workers"] if w["state"] == "ALIVE"]:
                        return master
            return None

        master = eventually(found, timeout_s, "an active master with a worker")
        assert master is not None
        return master

    def start(self) -> None:
        """Start all and wait until a job could run."""
        for master in self.masters:
            master.start()
        port, web_port = free_ports(2)
        main = "org.apache.spark.deploy.worker.Worker"
        size = ["--cores", "1", "--memory", "600m", "--work-dir", str(self.folder / "work")]
        ports = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        command = spark_daemon({}, main, *size, *ports, self.url)
        self._running.enter_context(daemon(command, log=self.folder / "worker.log", env=environment()))
        self.active()

    @contextlib.contextmanager
    def job(self, name: str, tasks: int) -> Iterator[SparkJob]:
        """Start a driver that runs `tasks` tasks."""
        job = SparkJob(self.folder / name)
        script = job.folder / "driver.py"
        script.write_text(_DRIVER)
        command = [sys.executable, str(script), self.url, str(job.folder), str(tasks)]
        with daemon(command, log=job.log, env=environment()) as driver:
            job.driver = driver
            yield job

    def close(self) -> None:
        """Kill all processes."""
        self._running.close()
        for master in self.masters:
            master.kill()


class SparkJob:
    """A running job: its tasks after the first wait for `let_go`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.log = folder / "driver.log"
        self.driver: subprocess.Popen[bytes] | None = None

    def wait_begun(self, task: int, timeout_s: float = 120) -> None:
        """Wait until task `task` runs."""
        begun = self.folder / f"begun-{task}"
        eventually(lambda: begun.exists() or self._has_ended(), timeout_s, f"task {task} runs")
        assert begun.exists(), self.log.read_text()[-3000:]

    def let_go(self) -> None:
        """Let all tasks finish."""
        (self.folder / "go").touch()

    def result(self, timeout_s: float = 120) -> int:
        """Return the driver's result, once it has ended."""
        eventually(self._has_ended, timeout_s, "the driver ends")
        text = self.log.read_text()
        sums = [line for line in text.splitlines() if line.startswith("SUM ")]
        assert sums, text[-3000:]
        return int(sums[0].split()[1])

    def _has_ended(self) -> bool:
        assert self.driver is not None
        return self.driver.poll() is not None


def environment() -> dict[str, str]:
    """Return the environment that Spark's scripts set; the worker builds the command lines of executors from it."""
    folder = jvm.jars_folder()
    assert folder is not None, jvm.missing()
    scala = next(folder.glob("scala-library-*.jar")).name.split("-")[2].rsplit(".", 2)[0]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(folder.parent),
        "SPARK_SCALA_VERSION": scala,
    }


def spark_daemon(options: dict[str, str], main: str, *arguments: str, heap_mb: int = 256) -> list[str]:
    """Return a command line of a Spark daemon."""
    folder = jvm.jars_folder()
    assert folder is not None, jvm.missing()
    properties = [f"-D{key}={value}" for key, value in options.items()]
    # Spark reaches into the platform's own classes; its launcher opens them in the same way.
    opened = ["java.lang", "java.lang.invoke", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch"]
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened]
    return jvm.java(*opens, *properties, "-cp", f"{folder}{os.sep}*", main, *arguments, heap_mb=heap_mb)
