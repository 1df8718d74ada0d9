"""Permission for backups of a node: the token in `admin.json`."""

from __future__ import annotations

import errno
import json
from typing import Any
from unittest import mock

from coord.admin_token import ADMIN_FILE
from coord.newcomers import LINES_MAX
from coord.server.admin import backup as module
from coord.server.admin.backup import Backups
from tests.support.disks import MemoryDisk
from tests.support.store_nodes import SeededRng, StepClock


def admitted(disk: MemoryDisk, seed: int, port: int = 81) -> str:
    """Return the token of a node that starts on `disk`."""
    node: Any = None
    backups = Backups(node, disk, "c", StepClock(), SeededRng(seed))
    backups.admit(("h", port))
    return backups.token.decode()


def content(disk: MemoryDisk) -> dict[str, str]:
    """Return the content of the file."""
    return dict(json.loads(bytes(disk.files[ADMIN_FILE].content)))


def test_token_stays_over_restarts_and_the_address_follows() -> None:
    """A copy of the file stays usable."""
    disk = MemoryDisk()
    token = admitted(disk, 1)
    assert content(disk) == {"admin": "h:81", "token": token}
    assert admitted(disk, 2, port=82) == token
    assert content(disk) == {"admin": "h:82", "token": token}


def test_file_that_says_the_same_is_not_written_again() -> None:
    """So a node starts on a full disk, too."""
    disk = MemoryDisk()
    token = admitted(disk, 1)
    disk.on_call = nothing_is_done
    assert admitted(disk, 2) == token


def nothing_is_done(name: str) -> None:
    """Fail: the disk must not be used."""
    raise AssertionError(name)


def test_full_disk_does_not_keep_a_node_from_starting() -> None:
    """Only backups need the file, so the node runs without it; an existing file stays."""
    disk = MemoryDisk()
    disk.failures["write"] = errno.ENOSPC
    assert len(admitted(disk, 1)) == 64
    assert ADMIN_FILE not in disk.files
    disk.failures.clear()
    token = admitted(disk, 2)
    disk.failures["create"] = errno.ENOSPC
    assert admitted(disk, 3, port=82) == token
    assert content(disk)["admin"] == "h:81"


def test_refused_requests_are_summed_up() -> None:
    """Anybody may send them. Fails if each one is a line."""
    node: Any = None
    clock = StepClock()
    backups = Backups(node, MemoryDisk(), "c", clock, SeededRng(1))
    with mock.patch.object(module, "log") as log:
        for _ in range(100):
            request = mock.Mock(method=b"POST", getHeader=lambda _: None)
            backups.answer(request)
            request.setResponseCode.assert_called_once_with(401)
        assert log.warn.call_count == LINES_MAX
        clock.now_ms += 10_000
        backups.answer(mock.Mock(method=b"POST", getHeader=lambda _: None))
    assert f"{100 - LINES_MAX} more" in log.warn.call_args.kwargs["more"]
