"""`rk debug bundle`: it never contains secrets, and is written with any process down."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from pathlib import Path

import pytest

from cli.common.errors import CliError, ExitStatus
from cli.common.local import (
    CERTS_DIR,
    SUPER_FILE,
    LocalCluster,
    design,
    make_servers_credential,
    make_super,
    write_cluster,
)
from cli.common.options import Globals
from cli.debug.bundle.command import collect
from cli.debug.bundle.hiding import HIDDEN, Hider, secrets_in
from cli.debug.bundle.sources import Source
from cli.main import run
from cli.up.shape import shape_of
from coord.security import making
from coord.security.principal import USER, Principal
from tests.support.helpers import free_ports


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the token is s3cr3t-value, and s3cr3t-value", "the token is (hidden), and (hidden)"),
        ('store-auth = "user:other"', 'store-auth = "(hidden)"'),
        ("RK_STORE_SASL=user:other", "RK_STORE_SASL=(hidden)"),
        ('["spark.fs.s3a.secret.key=abc"]', '["spark.fs.s3a.secret.key=(hidden)"]'),
        ('"password": "x", "port": 1', '"password": "(hidden)", "port": 1'),
        ("RK_STORE_AUTH=@/etc/rk/auth", "RK_STORE_AUTH=@/etc/rk/auth"),
        ("--peer-secret-file /etc/rk/peer-secret", "--peer-secret-file /etc/rk/peer-secret"),
        ('store-auth = "user:a,b}c]d e"', 'store-auth = "(hidden)"'),
        ('"password": "/base64", "secret": "a\\"b"', '"password": "(hidden)", "secret": "(hidden)"'),
        ('{\\"password\\": \\"a b\\"}', '{\\"password\\": \\"(hidden)\\"}'),
        ("RK_STORE_AUTH=user:a,b", "RK_STORE_AUTH=(hidden)"),
        ('"tokens": ["a", "b"], "secret": {"x": "y"}', '"tokens": (hidden), "secret": (hidden)'),
        ("rk master run --store-auth user:a --root /rk", "rk master run --store-auth (hidden) --root /rk"),
        ('["--store-sasl",\n  "user:a", "--root"]', '["--store-sasl",\n  "(hidden)", "--root"]'),
        ("--token --json", "--token --json"),
        ('peer-secret-file = "/etc/rk/peer-secret"', 'peer-secret-file = "/etc/rk/peer-secret"'),
        ("Authorization: Bearer abc.def", "Authorization: (hidden)"),
        ("https://user:pass@host:80/x", "https://user:(hidden)@host:80/x"),
        ('"has_secret": true, "port": 1', '"has_secret": true, "port": 1'),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nmore", "(hidden)\nmore"),
        ("no region of orders holds the keys from 'd' to 'f'", "no region of orders holds the keys from 'd' to 'f'"),
    ],
)  # fmt: skip
def test_secrets_are_taken_out(text: str, expected: str) -> None:
    """By their value, or by their name if the value is unknown here; names of files stay."""
    assert Hider({"s3cr3t-value", "is"}).text(text) == expected


def test_keys_are_taken_out_if_wanted() -> None:
    hider = Hider((), keys=True)
    assert hider.text("t1.0003 [dog, eel): split at 'd\\'og'") == "t1.0003 [(hidden)): split at '(hidden)'"
    assert hider.text('{"start_key": "d\\"og", "region_id": "t1.0003"}') == (
        '{"start_key": "(hidden)", "region_id": "t1.0003"}'
    )


def test_every_secret_of_a_directory_of_credentials_is_known(tmp_path: Path) -> None:
    """The secrets of daemons and users are found in every file that `rk certs init` makes.

    Fails if `secrets_in` reads no values of files (`_values`).
    """
    tmp_path.chmod(0o700)
    making.init(tmp_path, Principal(USER, "admin"))
    found = secrets_in([tmp_path], [])
    [*secrets] = json.loads((tmp_path / "cluster-secret.json").read_text())["secrets"].values()
    key = json.loads((tmp_path / "user.admin.json").read_text())["key"]
    assert {*secrets, key, (tmp_path / making.PEERS_FILE).read_text().strip()} <= found
    assert "admin" not in found


def test_what_does_not_answer_in_time_does_not_hold_the_bundle_up() -> None:
    """Tried: with a pool that is waited for, the test hangs."""
    never = threading.Event()

    def silent(_: float) -> str:
        never.wait()
        return ""

    def refused(_: float) -> str:
        raise CliError("nobody listens")

    found, failed = collect(
        [Source("a", lambda _: "text"), Source("b", silent), Source("c", refused)], time.monotonic() + 0.3
    )
    never.set()
    assert found == {"a": "text"}
    assert failed["b"].startswith("no answer within")
    assert failed["c"] == "nobody listens"


def stopped_cluster(data_dir: Path) -> LocalCluster:
    """Return a cluster without running processes. One of its logs contains its secrets."""
    local = design(shape_of(Globals(), None, 1, 1, 1, None, None, "greedy"), data_dir)
    for one in local.daemons():
        port, admin = free_ports(2)
        one.address, one.admin = f"127.0.0.1:{port}", f"127.0.0.1:{admin}"
        Path(one.data_dir).mkdir(parents=True)
        Path(one.log).parent.mkdir(exist_ok=True)
        Path(one.log).write_text("the first line\nthe last line\n")
    local.store, local.secured = local.coord[0].address, True
    (data_dir / CERTS_DIR).mkdir(mode=0o700)
    making.init(data_dir / CERTS_DIR, Principal(USER, "admin"))
    write_cluster(local, data_dir)
    return local


@pytest.mark.parametrize("words", [[], ["--hide-keys"]])
def test_a_bundle_of_a_dead_cluster_has_what_is_on_this_machine(tmp_path: Path, words: list[str]) -> None:
    """With all processes down the bundle has the verdict, configuration, logs, and the reasons for the missing parts.
    It has no secret, although a log contains one.

    Tried: without `hider.text` the secrets are in the log; without SERVERS_FILE that of the servers.
    """
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o700)
    local = stopped_cluster(data_dir)
    credential, of_servers = make_super(data_dir), make_servers_credential(data_dir)
    key = json.loads((data_dir / CERTS_DIR / "user.admin.json").read_text())["key"]
    with Path(local.coord[0].log).open("a") as log:
        log.write(f"somebody logged {credential}, {of_servers} and {key}\n")
    target = tmp_path / "b.tgz"
    line = ["debug", "bundle", "--output", str(target), "--log-lines", "2", "--timeout", "3", *words]
    assert run([*line, "--data-dir", str(data_dir)]) == ExitStatus.OK
    assert target.stat().st_mode & 0o077 == 0
    with tarfile.open(target) as archive:
        texts = {one.name.partition("/")[2]: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
    assert next(iter(texts)) == "summary.txt"
    assert json.loads(texts["health.json"])["verdict"]["verdict"] == "unavailable"
    assert json.loads(texts["configuration/cluster.json"])["store"] == local.store
    assert "it has ended" in texts["processes/store-1/process.txt"]
    assert "processes/store-1/srvr.txt: " in texts["summary.txt"]
    assert "refuses connections" in texts["summary.txt"]
    assert not any(
        secret in text for text in texts.values() for secret in (credential, key, credential[6:], of_servers[8:])
    )
    if words:
        assert "logs/store-1.log" not in texts
    else:
        assert texts["logs/store-1.log"] == f"the last line\nsomebody logged {HIDDEN}, {HIDDEN} and {HIDDEN}\n"
    assert (data_dir / SUPER_FILE).exists()
    assert run([*line, "--data-dir", str(data_dir)]) == ExitStatus.REFUSED, "nothing is overwritten"
