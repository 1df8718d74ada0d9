"""Identity and settings: one uuid for life, start codes that only rise, one process per directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from coord.errors import ConfigError
from regions.liveness.roster import SILENT_MS
from regionserver.config import ServerSettings, parse_address
from regionserver.session import instance
from regionserver.session.instance import Instance
from regionserver.tablets.disk import layout


def test_the_uuid_stays_and_the_start_code_rises(tmp_path: Path) -> None:
    """A restarted server has the same uuid and another incarnation."""
    first = Instance.open(tmp_path / "data")
    one = first.next_incarnation(1000)
    first.close()
    second = Instance.open(tmp_path / "data")
    two = second.next_incarnation(2000)
    second.close()
    assert one.uuid == two.uuid
    assert (one.start_code, two.start_code) == (1000, 2000)


def test_a_clock_set_back_repeats_no_start_code(tmp_path: Path) -> None:
    """The highest start code ever used is stored."""
    instance = Instance.open(tmp_path)
    codes = [instance.next_incarnation(now).start_code for now in (1000, 1000, 5)]
    instance.close()
    assert codes == [1000, 1001, 1002]


def test_it_belongs_to_one_cluster_for_life(tmp_path: Path) -> None:
    """FN-04: a server belongs to the first cluster that it joins. Another cluster is rejected by a sentence with the
    remedy, and nothing is changed."""
    first = Instance.open(tmp_path)
    first.adopt("c1", "here")
    first.adopt("c1", "here")
    first.close()
    second = Instance.open(tmp_path)
    with pytest.raises(ConfigError, match=r"belongs to a server of cluster c1, but there is cluster c2.*--data-dir"):
        second.adopt("c2", "there")
    assert second.cluster_id == "c1"
    second.close()
    assert msgspec.json.decode((tmp_path / "instance.json").read_bytes())["cluster_id"] == "c1"


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """The lock names its holder; releasing it lets the next process start."""
    instance = Instance.open(tmp_path)
    with pytest.raises(ConfigError, match="in use by another region server, process"):
        Instance.open(tmp_path)
    instance.close()
    Instance.open(tmp_path).close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not json", "not the identity"),
        (b'{"format":1,"uuid":"\xff","start_code":1}', "not the identity"),
        (b'{"uuid":"x","kind":"master"}', "not the identity"),
        (msgspec.json.encode({"format": 3, "uuid": "x", "start_code": 0}), "format 3"),
        (msgspec.json.encode({"format": 2, "uuid": "x", "start_code": 0}), "damaged"),
    ],
)
def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path, content: bytes, message: str) -> None:
    """Another daemon's directory, or a later version's."""
    (tmp_path / "instance.json").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        Instance.open(tmp_path)
    assert (tmp_path / "instance.json").read_bytes() == content


def test_tablets_without_their_identity_get_no_new_one(tmp_path: Path) -> None:
    """A new identity would be left behind, although the server does not start with it."""
    (tmp_path / "tablet-meta").mkdir()
    (tmp_path / "tablet-meta" / ".tmp-7").write_bytes(b"the rest of a creation that was cut short")
    Instance.open(tmp_path).close()
    (tmp_path / "instance.json").unlink()
    (tmp_path / "tablet-meta" / "t1.r1").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"holds tablets, and its instance.json is gone; nothing was changed"):
        Instance.open(tmp_path)
    assert not (tmp_path / "instance.json").exists()


def test_an_unusable_directory_is_one_clear_line(tmp_path: Path) -> None:
    """A file is in place of the directory."""
    (tmp_path / "data").write_text("")
    with pytest.raises(ConfigError, match="data directory"):
        Instance.open(tmp_path / "data")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"store": "nowhere"}, "store address"),
        ({"host": "0.0.0.0"}, "no other process can connect"),
        ({"root": "regions"}, "root"),
        ({"root": "/"}, "root"),
        ({"weight": 0.0}, "weight"),
        ({"session_timeout_ms": 10}, "session timeout"),
        ({"threads": 0}, "threads"),
        ({"data_dir": Path("same"), "shared_dir": Path("same")}, "both"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(change: dict[str, Any], message: str) -> None:
    """At once, with the invalid value."""
    good: dict[str, Any] = {
        "store": "a:1,b:2/chroot",
        "data_dir": Path("data"),
        "shared_dir": Path("shared"),
        "host": "a",
        "port": 1,
    }
    ServerSettings(**good)
    with pytest.raises(ConfigError, match=message):
        ServerSettings(**{**good, **change})


def test_a_heartbeat_is_sent_each_second_by_default(tmp_path: Path) -> None:
    """HB-01, and the masters' patience with silent servers is several of them."""
    settings = ServerSettings(store="s:1", data_dir=tmp_path, shared_dir=None, host="a", port=1)
    assert settings.heartbeat_period_s == 1.0
    assert 3_000 * settings.heartbeat_period_s <= SILENT_MS


@pytest.mark.parametrize(("text", "address"), [("a:1", ("a", 1)), ("[::1]:0", ("::1", 0))])
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """host:port, with IPv6 in brackets."""
    assert parse_address(text, "--address") == address


@pytest.mark.parametrize("text", ["a", ":1", "a:b", "a:70000", ""])
def test_bad_addresses_name_their_option(text: str) -> None:
    """The message says which option."""
    with pytest.raises(ConfigError, match="--address"):
        parse_address(text, "--address")


def test_the_folder_of_superblocks_has_one_name() -> None:
    """The session is a layer below the tablets and cannot import their layout, which in turn must not import `os`."""
    assert instance._SUPERBLOCKS == layout.BLOCKS
