"""The files of compose and Kubernetes as real processes on loopback addresses: commands, arguments, probes, secrets.

Host names and paths of containers are replaced by addresses and by folders of the test; nothing else is. Of the four
region servers two run. Systemd's command lines run in tests/e2e/test_topology.py.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cli.common.local import SUPER_FILE
from coord.security.credentials import STORE_MASTERS_FILE
from tests.support.helpers import PATIENCE_S, daemon, eventually, rk

pytestmark = pytest.mark.e2e

ROOT: Final = Path(__file__).parents[2]
DOCKER: Final = ROOT / "docker"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
#: Region servers that run.
SERVERS: Final = 2


class Place:
    """Replacements of the containers' names and paths."""

    def __init__(self, folder: Path, hosts: list[str]) -> None:
        network = 20 + os.getpid() % 200
        self.folder = folder
        self._addresses = {host: f"127.{network}.{number}.1" for number, host in enumerate(hosts, 1)}
        for one in ("data", "certs", "server-certs", "shared", "token", "secret", "run", "bin"):
            (folder / one).mkdir(mode=0o700)
        command = shlex.join([sys.executable, "-m", "cli"])
        (folder / "bin" / "rk").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "bin" / "rk").chmod(0o755)

    def __call__(self, text: str) -> str:
        """Return the text with addresses for host names, and with the test's folders."""
        for host in sorted(self._addresses, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w.-])", self._addresses[host], text)
        text = text.replace("/etc/regionkeeper/cluster.toml", f"{self.folder}/cluster.toml")
        text = text.replace("/opt/regionkeeper/health.py", str(DOCKER / "health.py"))
        return re.sub(
            r'(?<![\w/.-])/(data|certs|server-certs|shared|token|secret|run)(?=[/\s"\'*]|$)', rf"{self.folder}/\1", text
        )

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a container's command."""
        path = f"{self.folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **more}

    def run(self, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of a container to its end."""
        return subprocess.run(
            [self(one) for one in words], env=self.environment(**more), capture_output=True, text=True, check=False
        )


@contextlib.contextmanager
def running(place: Place, commands: dict[str, list[str]]) -> Iterator[None]:
    """Run daemons by these words after `rk`."""
    with contextlib.ExitStack() as stack:
        for name, words in commands.items():
            stack.enter_context(daemon(rk(*map(place, words)), log=place.folder / f"{name}.log"))
        yield


def test_the_containers_of_compose(tmp_path: Path) -> None:
    """Secrets are made, daemons run, every health check passes, and the tool's environment suffices for a command."""
    # Edit that made it fail: without RK_CERTS_DIR in the service rk.
    daemons = {name: one for name, one in COMPOSE.items() if str(one.get("command", "")).startswith("topology run")}
    left_out = [f"server{number}" for number in range(SERVERS + 1, 10)]
    place = Place(tmp_path, list(daemons))
    (tmp_path / "cluster.toml").write_text(place((DOCKER / "cluster.toml").read_text()))
    secrets = COMPOSE["credentials"]
    (tmp_path / "server-certs" / SUPER_FILE).write_text("of a cluster that an earlier build has made")
    for _ in range(2):
        made = place.run([*secrets["entrypoint"][2:], *secrets["command"]])
        assert made.returncode == 0, made.stderr
    assert (tmp_path / "server-certs" / STORE_MASTERS_FILE).exists()
    assert (tmp_path / "token" / "admin").read_text().strip()
    assert not (tmp_path / "server-certs" / SUPER_FILE).exists()
    chosen = {name: one for name, one in daemons.items() if name not in left_out}
    words = {name: shlex.split(one["command"]) for name, one in chosen.items()}
    # Where servers run, /certs is the volume server-certs.
    text = (tmp_path / "cluster.toml").read_text()
    (tmp_path / "servers.toml").write_text(text.replace(f"{tmp_path}/certs", f"{tmp_path}/server-certs"))
    for name in chosen:
        if name.startswith("server"):
            words[name] = [
                one.replace("/etc/regionkeeper/cluster.toml", f"{tmp_path}/servers.toml") for one in words[name]
            ]
    with running(place, words):
        for name, one in chosen.items():
            words = one["healthcheck"]["test"][1:]
            eventually(lambda words=words: place.run(words).returncode == 0, 2 * PATIENCE_S, what=f"{name} is healthy")
        settings = {name: place(value) for name, value in COMPOSE["rk"]["environment"].items()}
        status = place.run(["rk", "health"], **settings)
        assert status.returncode in (0, 1), status.stdout + status.stderr
        assert "master" in place.run(["rk", "status"], **settings).stdout
        created = place.run(["rk", "table", "create", "t", "--storage", "tablet"], **settings)
        assert created.returncode == 0, created.stderr
        shown = place.run(["rk", "health"], **settings).stdout
        assert "the masters' credential" not in shown, shown
        fsck = place.run(["rk", "fsck"], **settings)
        assert fsck.returncode == 0, fsck.stdout


def manifests() -> dict[str, dict[str, Any]]:
    """Return the StatefulSets by name."""
    found: dict[str, dict[str, Any]] = {}
    for file in (DOCKER / "kubernetes").glob("*.yaml"):
        for one in yaml.safe_load_all(file.read_text()):
            if one and one["kind"] == "StatefulSet":
                found[one["metadata"]["name"]] = one["spec"]
    return found


def status_of(url: str) -> int:
    """Return the status with which a probe is answered, 0 without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_the_pods_of_kubernetes(tmp_path: Path) -> None:
    """Secrets reach their directory as the init containers copy them; pods become their daemons; probes are answered as
    the services need it: each store node and server is ready, and one master."""
    # Edit that made it fail: /readyz as the path of a probe.
    sets = manifests()
    pods = {
        f"{name}-{number}": spec["template"]["spec"]
        for name, spec in sets.items()
        for number in range(min(spec["replicas"], SERVERS if name == "server" else 9))
    }
    hosts = {name: f"{name}.{name.rpartition('-')[0]}.regionkeeper.svc.cluster.local" for name in pods}
    idle = [f"server-{number}.server.regionkeeper.svc.cluster.local" for number in range(SERVERS, 10)]
    place = Place(tmp_path, [*hosts.values(), *idle])
    (tmp_path / "cluster.toml").write_text(place((DOCKER / "kubernetes" / "cluster.toml").read_text()))
    words = ["rk", "topology", "credentials", str(tmp_path / "cluster.toml"), "--to", str(tmp_path / "made")]
    assert place.run(words).returncode == 0
    for file in (tmp_path / "made").iterdir():
        if file.is_file():  # `kubectl create secret --from-file` leaves directories out
            file.rename(tmp_path / "secret" / file.name)
    commands: dict[str, list[str]] = {}
    certs = tmp_path / "run" / "regionkeeper" / "certs"
    for name, spec in pods.items():
        for init in spec["initContainers"]:
            copied = place.run(init["command"])
            assert copied.returncode == 0, copied.stderr
        assert (certs / SUPER_FILE).exists() == (not name.startswith("server-"))
        commands[name] = [one.replace("$(POD_NAME)", name) for one in spec["containers"][0]["args"]]

    def answers(name: str, probe: str) -> int:
        container = pods[name]["containers"][0]
        ports = {one["name"]: one["containerPort"] for one in container["ports"]}
        asked = container[probe]["httpGet"]
        return status_of(f"http://{place(hosts[name])}:{ports[asked['port']]}{asked['path']}")

    masters = [name for name in pods if name.startswith("master-")]
    assert place.run(pods["store-0"]["initContainers"][0]["command"]).returncode == 0  # all pods share a directory here
    with running(place, commands):
        for name in pods:
            for probe in ("livenessProbe", "startupProbe", *(() if name in masters else ("readinessProbe",))):
                eventually(
                    lambda name=name, probe=probe: answers(name, probe) == 200, 2 * PATIENCE_S, f"{name} {probe}"
                )
        eventually(
            lambda: sorted(answers(name, "readinessProbe") for name in masters) == [200, 503],
            PATIENCE_S,
            "one master is ready",
        )
        store = f"{hosts['store-0']}:2181"
        found = place.run(["rk", "status", "--store", store, "--certs-dir", "/run/regionkeeper/certs"])
        assert found.returncode == 0, found.stderr
