"""Options of the data source; credentials never become options."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyspark_regionkeeper
from cli.common.errors import NotFoundError
from pyspark_regionkeeper.errors import SourceError, spoken, words_of
from pyspark_regionkeeper.options import parse

PLACE = {"store": "db1:2181,db2:2181", "table": "t"}


@pytest.fixture(autouse=True)
def _without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("RK_STORE", "RK_STORE_AUTH", "RK_CERTS_DIR", "RK_CONTEXT", "RK_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)


def test_options_have_the_names_of_rk() -> None:
    """In any case, with "_" or "-"; paths become absolute, because executors run elsewhere."""
    found = parse(PLACE | {"Certs_Dir": "keys", "threads": "2", "timeout": "3", "start": "a", "push-filters": "true"})
    assert found.connection.store == "db1:2181,db2:2181"
    assert found.connection.settings == {"certs-dir": str(Path.cwd() / "keys")}
    assert (found.threads, found.timeout_s, found.start, found.push_filters) == (2, 3.0, "a", True)
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.connection.globals().settings() == found.connection.settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": "a:1"}, "give option table, or option view with one of history, runs, alarms"),
        (PLACE | {"view": "runs"}, "give option table, or option view"),
        ({"store": "a:1", "view": "rows"}, "there is no 'rows'; there are history, runs, alarms"),
        (PLACE | {"path": "t"}, "no option 'path'; name the table by option table"),
        (PLACE | {"colour": "red"}, "no option 'colour'; there are table, view"),
        (PLACE | {"threads": "0"}, "'0' is no number from 1 to 64"),
        (PLACE | {"timeout": "nan"}, "'nan' is no positive number of seconds"),
        (PLACE | {"push-filters": "yes"}, "'yes' is neither true nor false"),
        ({"table": "t", "store": "nowhere"}, "store address 'nowhere' is not host:port"),
        ({"table": "t"}, "name a store with --store"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    """With what to write instead."""
    with pytest.raises(SourceError, match=re.escape(words)):
        parse(options)


def test_a_credential_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark shows options. Fails when the credential is passed on: it would be among the settings."""
    with pytest.raises(SourceError, match="write @FILE") as caught:
        parse(PLACE | {"store-auth": "super:secret"})
    assert "secret" not in str(caught.value)
    assert parse(PLACE | {"store-auth": "@/keys/auth"}).connection.settings == {"store-auth": "@/keys/auth"}
    monkeypatch.setenv("RK_STORE_AUTH", "super:secret")
    found = parse(PLACE)
    assert "secret" not in repr(found)
    assert found.connection.globals().settings() == {"store-auth": "super:secret"}, "from the environment of the task"


def test_errors_are_one_line_and_are_found_within_the_text_of_spark() -> None:
    """The last one: Spark repeats a traceback in front of it."""
    with pytest.raises(SourceError, match=r"^no table. Look\.$"), spoken():
        raise NotFoundError("no table", "Look.")
    text = (
        "Traceback\n  raise SourceError(x)\npyspark_regionkeeper.errors.SourceError: no table. Look.\n SQLSTATE: 38000"
    )
    assert words_of(text) == "no table. Look."
    assert words_of("java.lang.Exception") == ""


def test_the_package_alone_imports_no_spark() -> None:
    """Fails with an import of pyspark at the top of a module that `rk` imports."""
    script = "import sys, pyspark_regionkeeper.options, cli.rows.load; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "False"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pyspark_regionkeeper.nothing
