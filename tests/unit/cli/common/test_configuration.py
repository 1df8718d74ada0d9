"""The configuration file: what it may hold, and which of its values count beside options and variables."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from cli.common.access import store_access
from cli.common.configuration import FILE_BYTES_MAX, read_configuration
from cli.common.errors import CliError, UsageFaultError
from cli.common.options import Globals
from cli.main import rk

_FILE = """
context = "one"
store = "file:1"
cluster-id = "of-the-file"

[contexts.one]
store = "one:1"
root = "/one"
store-auth = "user:of-one"

[contexts.two]
masters = "two:2"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with two contexts, named by the variable."""
    path = tmp_path / "config.toml"
    path.write_text(_FILE)
    monkeypatch.setenv("RK_CONFIG_FILE", str(path))
    return path


def _given(**values: str) -> Globals:
    found = Globals()
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_the_context_in_use_counts_before_the_top_of_the_file(file: Path) -> None:
    """Values that the context does not have come from the top, except places."""
    found = Globals()
    assert found.explicit_store() == "one:1"
    assert found.root_path == "/one"
    assert found.cluster_named() == "of-the-file"
    assert store_access(found).auth == "user:of-one"
    file.write_text(_FILE.replace('context = "one"', 'context = "two"'))
    found = Globals()
    assert found.master_addresses() == ["two:2"]
    assert found.explicit_store() is None


def test_precedence_is_option_environment_context_file_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each level taken away shows the next one."""
    monkeypatch.setenv("RK_STORE", "variable:1")
    assert _given(store="option:1").explicit_store() == "option:1"
    assert Globals().explicit_store() == "variable:1"
    monkeypatch.delenv("RK_STORE")
    assert Globals().explicit_store() == "one:1"
    file.write_text(_FILE.replace('context = "one"', ""))
    assert Globals().explicit_store() == "file:1"
    file.write_text("")
    assert Globals().explicit_store() is None
    assert Globals().root_path == "/regionkeeper"


@pytest.mark.parametrize("place", ["store", "masters", "data_dir"])
def test_a_context_is_used_as_a_whole_or_not_at_all(place: str, file: Path) -> None:
    """Its credential must not reach another cluster."""
    found = _given(**{place: "other:1"})
    assert store_access(found).auth == ""
    assert found.root_path == "/regionkeeper"


@pytest.mark.parametrize("variable", ["RK_STORE", "RK_MASTERS", "RK_DATA_DIR"])
def test_a_place_of_the_environment_leaves_the_context_out(
    variable: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "other:1")
    assert store_access(Globals()).auth == ""


def test_a_context_of_the_command_line_leaves_the_environment_out(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RK_STORE of the shell must not redirect `rk --context two table delete`."""
    monkeypatch.setenv("RK_STORE", "variable:1")
    monkeypatch.setenv("RK_STORE_AUTH", "user:variable")
    found = _given(context="two")
    assert found.master_addresses() == ["two:2"]
    assert found.explicit_store() is None
    assert store_access(found).auth == ""


def test_a_context_and_another_place_are_refused(file: Path) -> None:
    with pytest.raises(UsageFaultError, match="--context two and --store name two clusters"):
        _given(context="two", store="other:1").explicit_store()


def test_a_variable_names_the_context(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RK_CONTEXT", "two")
    assert Globals().master_addresses() == ["two:2"]
    monkeypatch.setenv("RK_CONTEXT", "three")
    with pytest.raises(CliError, match="no context 'three'") as error:
        Globals().explicit_store()
    assert error.value.hint == "Contexts: one, two."


def test_daemons_use_neither_context_nor_top_of_the_file(file: Path) -> None:
    """An operator's credential must not reach the store of a daemon that is started beside him."""
    found = _given()
    found.uses_file = False
    assert found.settings() == {}


def test_commands_of_this_machine_use_only_contexts_with_a_directory(file: Path) -> None:
    """`rk up` must not start masters with the credential of a remote cluster."""
    found = _given()
    found.uses_remote_context = False
    assert found.settings() == {}
    file.write_text('context = "here"\n[contexts.here]\ndata-dir = "/here"\nroot = "/r"\n')
    found = _given()
    found.uses_remote_context = False
    assert (found.data_path, found.root_path) == (Path("/here"), "/r")


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ('stroe = "a:1"', "'stroe' is not known", "'store'"),
        ('[contexts.x]\nsotre = "a:1"', "'contexts.x.sotre' is not known", "'store'"),
        ("[contexts.x]\nlimit = 1", "'contexts.x.limit' is not known", "rk context"),
        ("[region.list]\nlimt = 1", "'region.list.limt' is not known", "'limit'"),
        ('[region.list]\nstore = "a:1"', "'region.list.store' is not known", ""),
        ('[region.move]\nregion_name = "x"', "'region.move.region_name' is not known", ""),
        ("[regoin.list]\nlimit = 1", "'regoin' is not known", "'region'"),
        ("region = 1", "'region' must be a table", ""),
        ("store = 1", "'store' must be a text, not 1", ""),
        ('json = "yes"', "'json' must be true or false", ""),
        ("contexts = 1", "'contexts' must be a table of contexts", ""),
        ("[region.list]\nlimit = [1, 2]", "'region.list.limit' must be one value", ""),
        ("a = ", "is not TOML", ""),
    ],
)
def test_a_wrong_key_or_value_is_refused_with_file_and_key(text: str, key: str, hint: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(CliError) as error:
        Globals().configure(rk)
    assert str(file) in error.value.message
    assert key in error.value.message
    assert hint in error.value.hint


def test_tables_of_commands_become_defaults_by_parameter(file: Path) -> None:
    """An option's name has dashes, click's parameter has underscores; a group keeps its name."""
    file.write_text('[region.list]\nmax-stale = "1s"\nstate = ["open", "parked"]\n[master.run]\nmin-servers = 2\n')
    found = Globals().configure(rk)
    assert found.commands == {
        "region": {"list": {"max_stale": "1s", "state": ["open", "parked"]}},
        "master": {"run": {"min_servers": 2}},
    }


def test_a_named_file_must_exist_but_not_the_default_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RK_CONFIG_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert Globals().configuration.path is None
    missing = str(tmp_path / "missing.toml")
    with pytest.raises(CliError, match="does not exist"):
        _given(config_file=missing).configure(None)
    monkeypatch.setenv("RK_CONFIG_FILE", missing)
    with pytest.raises(CliError, match="does not exist"):
        Globals().configure(None)
    (tmp_path / "rk").mkdir()
    (tmp_path / "rk" / "config.toml").write_text('store = "default:1"')
    monkeypatch.delenv("RK_CONFIG_FILE")
    assert Globals().explicit_store() == "default:1"


@pytest.mark.parametrize("text", [b"\xff\xfe", b"store = '\x00'"])
def test_a_file_that_is_no_text_is_one_sentence(text: bytes, file: Path) -> None:
    file.write_bytes(text)
    with pytest.raises(CliError, match=str(file)):
        Globals().configure(None)


def test_every_level_of_every_place_is_decided_by_one_level(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A masters' address of the file never joins a store of the command line."""
    for option, value in itertools.product(("store", "data_dir"), ("x:1",)):
        file.write_text('masters = "file:2"\n')
        assert _given(**{option: value}).master_addresses() == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("store = " + "[" * 10_000, "nests too deeply"),
        ("context = " + "{a=" * 10_000, "nests too deeply"),
        ("a" + ".a" * 30_000 + " = 1", "nests too deeply"),
        ('["a"' + " . 'a'" * 10_000 + "]", "nests too deeply"),
        ("limit = " + "1" * 5_000, "is not TOML"),
        ('store = "' + "x" * FILE_BYTES_MAX + '"', f"has more than {FILE_BYTES_MAX} bytes"),
        ('[contexts.a]\n"\\u001b]52;c;aGk=\\u0007" = 1', r"key 'contexts.a.\x1b]52;c;aGk=\x07' is not known"),
        ('store = "a\\u001b[2J', "is not TOML"),
    ],
    ids=["arrays", "tables", "dots", "header", "number", "long", "escape", "cut"],
)
def test_a_file_made_by_somebody_else_costs_one_sentence(file: Path, content: str, says: str) -> None:
    """The file may come from a downloaded project. There is no traceback, no endless time, and no control character for
    the terminal."""
    file.write_text(content)
    with pytest.raises(UsageFaultError) as found:
        read_configuration(None, ())
    assert says in str(found.value)
    assert str(found.value).isprintable()


def test_dots_in_values_are_no_keys(file: Path) -> None:
    """A store of many nodes, and a key in a comment."""
    store = ",".join(f"db{number}.rack-7.example.com:2181" for number in range(50))
    file.write_text(f'store = "{store}"  # {"a." * 31}a\n')
    assert read_configuration(None, ()).values == {"store": store}


def test_a_file_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the file is read as a whole: out of memory."""
    monkeypatch.setenv("RK_CONFIG_FILE", "/dev/zero")
    with pytest.raises(UsageFaultError, match=f"has more than {FILE_BYTES_MAX} bytes"):
        read_configuration(None, ())
