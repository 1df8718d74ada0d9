"""The check of LMDB at the start of a server."""

from __future__ import annotations

import faulthandler
import os
from pathlib import Path

import pytest

from regionserver.tablets.rows import environment, self_test
from regionserver.tablets.rows.self_test import SelfTestFailed
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.support.power_cut import EndedTransaction


def test_this_lmdb_passes_and_nothing_stays_behind(tmp_path: Path) -> None:
    self_test.self_test(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_library_that_does_not_keep_pinned_pages_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TabletRows._begin_pin
    monkeypatch.setattr(TabletRows, "_begin_pin", lambda rows: EndedTransaction(begin(rows)))
    pid = os.fork()  # damaged pages may kill the process
    if pid == 0:
        code = 1
        try:
            faulthandler.disable()
            self_test.self_test(str(tmp_path))
        except SelfTestFailed as error:
            code = 7 if "does not keep steady points" in str(error) else 1
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 7


def test_a_library_with_other_meta_pages_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta pages are not where this build looks for them."""
    read = environment.RowsDisk.read_metas
    monkeypatch.setattr(
        environment.RowsDisk, "read_metas", lambda disk, path, size: read(disk, path, 2 * size)[2 * size :]
    )
    with pytest.raises(SelfTestFailed, match=r"LMDB 0\.9.*does not keep steady points"):
        self_test.self_test(str(tmp_path))
