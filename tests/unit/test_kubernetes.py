"""The manifests of docker/kubernetes without a cluster: schemas of the API, and agreement with their topology."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cli.topology.load import load
from cli.topology.model import KINDS
from cli.topology.units import stop_seconds
from coord.security.admin import OPEN_PATHS
from tests.unit.test_docker import parse

FOLDER = Path(__file__).parents[2] / "docker" / "kubernetes"
TOPOLOGY = load(FOLDER / "cluster.toml")
#: A version whose API is in wide use; the package carries its schemas.
VERSION = "1.31"
RESOURCES: dict[str, dict[str, Any]] = {
    f"{one['kind']}/{one['metadata']['name']}": one
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for one in yaml.safe_load_all(path.read_text())
}
SETS = {name: RESOURCES[f"StatefulSet/{name}"] for name in ("store", "master", "server")}
NODES = {KINDS[kind]: [one for one in TOPOLOGY.nodes() if one.kind == kind] for kind in KINDS}


@pytest.mark.parametrize("name", sorted(RESOURCES))
def test_resources_follow_the_schemas_of_the_api(name: str) -> None:
    """Strictly: an unknown key is a fault. Tried: `replica: 3` in place of `replicas: 3` is refused."""
    kubernetes_validate.validate(RESOURCES[name], VERSION, strict=True)


def test_the_schemas_refuse_an_unknown_key() -> None:
    wrong = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"port": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kustomize_builds_all_resources() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    found = {f"{one['kind']}/{one['metadata']['name']}" for one in yaml.safe_load_all(built.stdout)}
    assert found == set(RESOURCES) | {"ConfigMap/topology"}


@pytest.mark.parametrize("component", sorted(SETS))
def test_pods_are_the_daemons_of_the_topology(component: str) -> None:
    """A pod's own name chooses its daemon, and there are as many pods as daemons."""
    spec, nodes = SETS[component]["spec"], NODES[component]
    assert spec["replicas"] == len(nodes)
    container = spec["template"]["spec"]["containers"][0]
    for ordinal, node in enumerate(nodes):
        words = [word.replace("$(POD_NAME)", f"{component}-{ordinal}") for word in container["args"]]
        command, context = parse(words)
        assert (command.name, context.params["host"]) == ("run", node.host)
        assert node.host.startswith(f"{component}-{ordinal}.{spec['serviceName']}.regionkeeper.svc.")
        assert sorted(port["containerPort"] for port in container["ports"]) == sorted(port for port, _ in node.uses())
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= stop_seconds(node)


@pytest.mark.parametrize("component", sorted(SETS))
def test_pods_are_probed_and_confined(component: str) -> None:
    """Probes ask pages that need no token; containers have limits, no rights and no token of the API."""
    pod = SETS[component]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("readiness", "liveness", "startup")}
    assert {path.partition("?")[0] for path in probes.values()} <= OPEN_PATHS
    assert probes["readiness"] == ("/ready?role=active" if component == "master" else "/ready")
    assert probes["liveness"] == "/health"
    assert pod["automountServiceAccountToken"] is False
    for one in (*pod["initContainers"], container):
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert one["resources"]["limits"]["memory"]
    rule = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert rule["topologyKey"] == "kubernetes.io/hostname"


def test_secrets_are_where_daemons_look_for_them() -> None:
    """`rk topology credentials` makes the files of the secret; an init container copies them."""
    for component, manifest in SETS.items():
        pod = manifest["spec"]["template"]["spec"]
        script = pod["initContainers"][0]["command"][-1]
        assert f"install -m 0600 /secret/* {TOPOLOGY.credentials_dir}" in script, component
        mounts = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert {TOPOLOGY.data_dir, str(Path(TOPOLOGY.credentials_dir).parent), "/etc/regionkeeper"} <= mounts


def test_services_select_pods_that_exist() -> None:
    """Daemons find each other before they are ready; only the active master is behind its service."""
    for name, service in RESOURCES.items():
        if not name.startswith("Service/"):
            continue
        labels = SETS[service["spec"]["selector"]["component"]]["spec"]["template"]["metadata"]["labels"]
        assert service["spec"]["selector"] == labels
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"].get("publishNotReadyAddresses", False) == (name != "Service/active-master")


def test_budgets_leave_a_majority() -> None:
    """One pod at a time. A budget for masters would forbid to evict the active one: the other is never ready."""
    budgets = {name: one["spec"] for name, one in RESOURCES.items() if name.startswith("PodDisruptionBudget/")}
    assert sorted(budgets) == ["PodDisruptionBudget/server", "PodDisruptionBudget/store"]
    assert all(spec["maxUnavailable"] == 1 for spec in budgets.values())
    assert SETS["master"]["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_the_page_names_the_commands() -> None:
    page = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()
    lines = [line.strip() for line in page.splitlines() if line.strip().startswith("rk topology credentials docker/k")]
    assert lines, "docs/deploy.md says how the secret is made"
    assert parse(shlex.split(lines[0], comments=True)[1:])[0].name == "credentials"
