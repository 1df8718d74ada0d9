"""Rows, keys and names that attack a terminal, and bytes that are not text, through real commands."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cli.main import run
from tests.e2e.masters import Cluster, cluster_on, own_store

pytestmark = pytest.mark.e2e


class Done(NamedTuple):
    """Exit status and output of a command."""

    returncode: int
    stdout: bytes
    stderr: bytes


CLIPBOARD = "k\x1b]52;c;eA==\x07"
CLEAR = "v\x1b[2J\u202etxt"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster with one table."""
    folder: Path = tmp_path_factory.mktemp("terminal")
    with own_store(folder / "store", 1) as hosts, cluster_on(hosts, folder, masters=1, servers=1) as running:
        running.wait_servers(1)
        assert run(["table", "create", "t", "--replicas", "1", "--store", hosts]) == 0
        yield running


@pytest.fixture
def rk(cluster: Cluster, capsysbinary: pytest.CaptureFixture[bytes]) -> Callable[..., Done]:
    """Return a function that runs a command with these words, which may be any bytes."""

    def run_one(*words: str | bytes) -> Done:
        capsysbinary.readouterr()
        status = run([os.fsdecode(one) for one in (*words, "--store", cluster.hosts)])
        return Done(status, *capsysbinary.readouterr())

    return run_one


def on_terminal(cluster: Cluster, *words: str) -> bytes:
    """Return what a command writes to a terminal."""
    reader, terminal = pty.openpty()
    line = [sys.executable, "-m", "cli", *words, "--store", cluster.hosts]
    with subprocess.Popen(line, stdout=terminal, stderr=terminal, stdin=subprocess.DEVNULL):
        os.close(terminal)
        said = b""
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # the terminal's other end is closed
                break
            said += part
    os.close(reader)
    return said


def test_rows_reach_no_terminal_unquoted(cluster: Cluster, rk: Callable[..., Done]) -> None:
    """Neither by scan, get, or an error. A pipe gets a value's own bytes; JSON says the same text."""
    assert rk("put", "t", CLIPBOARD, CLEAR).returncode == 0
    found = [on_terminal(cluster, "scan", "t"), on_terminal(cluster, "get", "t", CLIPBOARD)]
    found += [rk("get", CLIPBOARD, "k").stderr, rk("scan", "t").stdout]
    for said in found:
        assert b"\x1b" not in said
        assert b"\x07" not in said
        assert "\u202e".encode() not in said
        assert b"\\x1b" in said
    assert rk("get", "t", CLIPBOARD).stdout == CLEAR.encode() + b"\n"
    line = rk("scan", "t", "--json").stdout
    assert b"\x1b" not in line
    assert json.loads(line) == {"key": CLIPBOARD, "value": CLEAR}


def test_any_bytes_can_be_put_and_what_is_printed_can_be_put_again(rk: Callable[..., Done]) -> None:
    """A value is any bytes; a key is text, and another one is a clear usage error of every command."""
    value = b"\xff\x00\xfe"
    assert rk("put", "t", "raw", value.replace(b"\x00", b"")).returncode == 0
    assert rk("get", "t", "raw").stdout == b"\xff\xfe\n"
    assert rk("put", "t", "encoded", "--base64", "base64:/wD+").returncode == 0
    assert rk("get", "t", "encoded").stdout == value + b"\n"
    assert b"encoded\tbase64:/wD+\n" in rk("scan", "t").stdout
    assert rk("put", "t", "encoded", "--base64", "no").returncode == 2
    for words in (("put", "t", b"k\xff", "v"), ("get", "t", b"\xff"), ("scan", "t", "--prefix", b"\xff"),
                  ("delete", "t", b"\xff"), ("scan", b"t\xff")):  # fmt: skip
        done = rk(*words)
        assert (done.returncode, b"no text in UTF-8" in done.stderr) == (2, True), (words, done)
    for name in ("../..", "..", ".", "a/../b", ""):
        done = rk("get", name, "k")
        assert (done.returncode, b"does not exist" in done.stderr) == (4, True), (name, done)
