"""A node on an address that other machines reach does not start without credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.main import run
from coord.errors import ConfigError
from coord.security import process
from coord.security.principal import OpenDoor
from coord.server.config.exposure import check_exposed, open_door, open_ports
from coord.server.config.settings import StoreSettings
from coord.tls.context import TlsFiles

_OUT = "10.0.0.1"
_NEED = TlsFiles(Path("c"), ca=Path("a"), client_auth="need")
_NO_PROOF = TlsFiles(Path("c"))


def names(*, has_certs: bool = False, **settings: Any) -> list[str]:
    """Return the open ports of a node with these settings."""
    known = {"client_address": ("127.0.0.1", 2181), **settings}
    return [port for port, _ in open_ports(StoreSettings(1, Path(), **known), has_certs=has_certs)]


@pytest.mark.parametrize("host", [_OUT, "", "0.0.0.0", "::", "db1"])
def test_every_port_is_looked_at(host: str) -> None:
    """Fails if `open_ports` leaves one of the addresses out."""
    settings = {"client_address": (host, 1), "peer_address": (host, 2), "admin_address": (host, 3)}
    assert [one.rpartition(" ")[0] for one in names(**settings)] == ["client port", "peer port", "admin port"]


@pytest.mark.parametrize(
    "settings",
    [
        {"client_address": ("127.0.0.1", 1), "peer_address": ("::1", 2), "admin_address": ("localhost", 3)},
        {"client_address": (_OUT, 1), "required_schemes": ("rk",)},
        {"client_address": (_OUT, 1), "secure_client_address": (_OUT, 1), "tls": _NEED},
        {"peer_address": (_OUT, 2), "peer_secret": b"x" * 16},
        {"peer_address": (_OUT, 2), "peer_tls": _NEED},
        {"admin_address": (_OUT, 3), "has_certs": True},
    ],
)
def test_ports_that_are_closed(settings: dict[str, Any]) -> None:
    """By their address or by credentials."""
    assert names(**settings) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"client_address": (_OUT, 1), "required_schemes": ("digest",)},
        {"client_address": (_OUT, 1), "secure_client_address": (_OUT, 1), "tls": _NO_PROOF},
        {"client_address": (_OUT, 1), "secure_client_address": (_OUT, 2), "tls": _NEED},
    ],
)
def test_what_closes_no_port(settings: dict[str, Any]) -> None:
    """Every password is a digest; a certificate of the node alone proves no client; a second port may be plain."""
    assert len(names(**settings)) == 1


def test_the_sentence_names_ports_and_remedies() -> None:
    """And the option for a trusted network."""
    settings = StoreSettings(1, Path(), (_OUT, 2181), peer_address=(_OUT, 2888))
    with pytest.raises(ConfigError) as caught:
        check_exposed(settings, has_certs=False)
    for words in ("client port 10.0.0.1:2181 and peer port 10.0.0.1:2888", "--require-auth rk", "--peer-secret-file",
                  "--insecure"):  # fmt: skip
        assert words in str(caught.value)


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before it opens its directory. Fails without the call of `check_exposed` in `rk coord run`."""
    assert run(["coord", "run", "--id", "1", "--data-dir", str(tmp_path / "d"), "--client-address", "10.0.0.1:2"]) == 2
    assert "or --insecure on a network that you trust" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_zoo_cfg_works_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ensemble that moves here starts as before, with a warning."""
    started: list[StoreSettings] = []
    monkeypatch.setattr("coord.server.service.run", lambda settings: started.append(settings) or 0)
    (tmp_path / "d").mkdir()
    (tmp_path / "zoo.cfg").write_text(f"dataDir={tmp_path / 'd'}\nclientPort=2\n")
    with pytest.raises(SystemExit):
        run(["coord", "run", "--config", str(tmp_path / "zoo.cfg")])
    assert [one.client_address for one in started] == [("0.0.0.0", 2)]
    said = capsys.readouterr().err
    assert "warning: as a ZooKeeper would by this file, the node serves everybody on the client port" in said


def test_the_door_of_a_running_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports of a node on loopback are not doors; a node that is being secured serves everybody wherever it listens."""
    settings = StoreSettings(1, Path(), client_address=("127.0.0.1", 2181))
    exposed = StoreSettings(1, Path(), client_address=(_OUT, 2181))
    assert (open_door(settings), open_door(exposed)) == (OpenDoor.CLOSED, OpenDoor.EXPOSED)
    monkeypatch.setattr(process, "is_securing", lambda: True)
    assert (open_door(settings), open_door(exposed)) == (OpenDoor.SECURING, OpenDoor.SECURING)
