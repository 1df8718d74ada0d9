"""Spark master URLs, settings, missing programs; the archive for executors; Spark's failures as sentences."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from regions.plan import BadInput
from regions.plan.ship import contents, main, write_archive
from regions.plan.spark.arguments import SparkFailed, as_plan_error
from regions.plan.spark.target import BadTarget, SparkTarget, TargetKind, missing, parse_conf, parse_target, unreachable

HERE = (("127.0.0.1", 7077),)


@pytest.mark.parametrize(
    ("url", "kind", "hosts"),
    [
        ("local", TargetKind.LOCAL, ()),
        ("local[*]", TargetKind.LOCAL, ()),
        ("local[4]", TargetKind.LOCAL, ()),
        ("local[*, 3]", TargetKind.LOCAL, ()),
        ("spark://127.0.0.1:7077", TargetKind.STANDALONE, HERE),
        ("spark://a:7077,b:7078", TargetKind.STANDALONE, (("a", 7077), ("b", 7078))),
        ("spark://[::1]:7077", TargetKind.STANDALONE, (("::1", 7077),)),
        ("yarn", TargetKind.YARN, ()),
        ("k8s://https://api.cluster:6443", TargetKind.KUBERNETES, (("api.cluster", 6443),)),
        ("k8s://api.cluster:6443", TargetKind.KUBERNETES, (("api.cluster", 6443),)),
        ("k8s://http://127.0.0.1", TargetKind.KUBERNETES, (("127.0.0.1", 80),)),
        ("sc://host", TargetKind.CONNECT, (("host", 15002),)),
        ("sc://host:9/;use_ssl=true", TargetKind.CONNECT, (("host", 9),)),
    ],
)
def test_every_kind_of_master_is_understood(url: str, kind: TargetKind, hosts: tuple[tuple[str, int], ...]) -> None:
    """The place of the tasks, and the address to check."""
    assert parse_target(url) == SparkTarget(url, kind, hosts)


@pytest.mark.parametrize(
    "url", ["", "locl[*]", "local[0]", "spark://a", "spark://a:x", "spark://", "http://a:1", "sc://", "yarn-client"]
)
def test_what_is_no_master_is_said_at_once(url: str) -> None:
    """One sentence with the valid forms."""
    with pytest.raises(BadTarget, match="is no Spark master"):
        parse_target(url)


def test_settings_are_names_of_spark_with_values() -> None:
    """A value may contain anything, also another `=`."""
    assert parse_conf(["spark.a.b=1", "spark.driver.extraJavaOptions=-Dx=y"]) == {
        "spark.a.b": "1",
        "spark.driver.extraJavaOptions": "-Dx=y",
    }
    for wrong in ("spark.a", "a.b=1", "spark.a b=1", "=1"):
        with pytest.raises(BadTarget, match=r"spark\.NAME=VALUE"):
            parse_conf([wrong])


def test_what_lies_on_this_machine_is_bound_to_it() -> None:
    """For a cluster on loopback addresses the driver needs no other address."""
    assert parse_target("local[2]").is_here
    assert parse_target("spark://127.0.0.1:1,localhost:2").is_here
    assert parse_target("spark://[::1]:1,127.3.2.1:2").is_here
    assert not parse_target("spark://127.example.com:1").is_here, "a name, of any machine"
    assert not parse_target("spark://127.0.0.1:1,elsewhere:2").is_here
    assert not parse_target("yarn").is_here


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java if the driver needs it, YARN's configuration; neither for a server that has its own."""
    pytest.importorskip("pyspark")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Java is not installed" in missing(parse_target("spark://a:1"))
    assert "Java" not in missing(parse_target("sc://a"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "has no bin/java" in missing(parse_target("local"))
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    assert missing(parse_target("local")) == ""
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert "HADOOP_CONF_DIR" in missing(parse_target("yarn"))
    monkeypatch.setenv("YARN_CONF_DIR", str(tmp_path))
    assert missing(parse_target("yarn")) == ""


def test_a_silent_address_is_named_and_one_of_several_is_enough() -> None:
    """The check comes before a session is tried: Spark itself gives up only after a minute."""

    def connect(host: str, port: int) -> None:
        socket.create_connection((host, port), 5.0).close()

    with socket.socket() as listening, socket.socket() as closed:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        closed.bind(("127.0.0.1", 0))
        up, down = listening.getsockname()[1], closed.getsockname()[1]
        assert unreachable(parse_target(f"spark://127.0.0.1:{down},127.0.0.1:{up}"), connect) == ""
        silence = unreachable(parse_target(f"spark://127.0.0.1:{down}"), connect)
    assert silence.startswith(f"nothing answers at spark://127.0.0.1:{down} (127.0.0.1:{down}: ")
    assert unreachable(parse_target("yarn"), connect) == ""


def test_the_archive_is_all_that_an_executor_needs(tmp_path: Path) -> None:
    """Both kernels load from it with NumPy, pyarrow and OR-tools, without RegionKeeper installed."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("ortools")
    assert main([str(tmp_path / "one.zip")]) == 0
    write_archive(tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    program = (
        "import sys; sys.path[:0] = [sys.argv[1]]\n"
        "import regions.plan.spark.kernel, regions.plan.engines.flow as f; f.solver()\n"
        "ours = [m for n, m in sys.modules.items() if n.split('.')[0] in ('regions', 'coord')]\n"
        "assert ours and all(m.__file__.startswith(sys.argv[1]) for m in ours), ours"
    )
    words = [sys.executable, "-S", "-c", program, str(tmp_path / "one.zip")]
    packages = sysconfig.get_paths()["platlib"]
    done = subprocess.run(
        words, cwd=tmp_path, env={"PYTHONPATH": packages}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert set(archive.namelist()) == set(contents(Path(__file__).resolve().parents[5]))
    assert main(["--help"]) == 2
    assert main([str(tmp_path / "nowhere" / "x.zip")]) == 1


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("x\n  ModuleNotFoundError: No module named 'ortools'\n", SparkFailed, "has no module 'ortools'"),
        ('java.io.IOException: Cannot run program "/opt/py": error=2', SparkFailed, "have no Python at /opt/py"),
        (
            "An error occurred while calling o9.x.\n: org.apache.spark.SparkException: Job aborted: all gone\n\tat x",
            SparkFailed,
            "^Job aborted: all gone$",
        ),
        ("[PATH_NOT_FOUND] Path does not exist: file:/data/in/r.csv. SQLSTATE", BadInput, "do not see file:/data/in/r"),
        ("x\nFileNotFoundException: File file:/d/b.csv does not exist", BadInput, "do not see file:/d/b.csv"),
        ("[FAILED_READ_FILE.NO_HINT] Encountered error in b.csv", BadInput, "cannot be read"),
        ("Python in worker has different version: 3.9 than that in driver: 3.11", SparkFailed, "is another one"),
        ("", SparkFailed, "RuntimeError"),
    ],
)
def test_what_spark_says_becomes_a_sentence(said: str, kind: type[Exception], words: str) -> None:
    """The cause, and the setting that repairs it."""
    error = as_plan_error(RuntimeError(said))
    assert isinstance(error, kind)
    assert re.search(words, str(error)), str(error)
    assert "\n" not in str(error)
