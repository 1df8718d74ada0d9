"""The state of rows at a start, from their steady points."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from coord.errors import ConfigError
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.disk.startup import RowsFound
from regionserver.tablets.offline.steady_points import StartingRows
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.steady import MAGIC
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.unit.regionserver.tablets.disk.examples import TABLET


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Return the file of rows of generation 3, with a steady point."""
    (tmp_path / "data").mkdir()
    path = tmp_path / rows_path(TABLET, 3)
    opened = TabletRows.open(str(path), Identity(TABLET, 3), "boot", (0, 0))
    opened.steady()
    opened.close()
    return path


def test_rows_with_a_steady_point_can_be_used(tmp_path: Path, rows: Path) -> None:
    assert StartingRows(tmp_path)(TABLET, 3) == RowsFound(3, applied_index=0)
    assert Path(f"{rows}.steady").exists()


def test_rows_without_a_steady_point_hold_nothing(tmp_path: Path, rows: Path) -> None:
    """A new file is begun, so they do not fit a log with a floor."""
    Path(f"{rows}.steady").unlink()
    assert StartingRows(tmp_path)(TABLET, 3) == RowsFound(3, applied_index=0)


def test_a_steady_point_without_rows_is_damage(tmp_path: Path, rows: Path) -> None:
    rows.unlink()
    assert "is missing" in StartingRows(tmp_path)(TABLET, 3).damage


def test_every_flipped_byte_of_a_steady_point_is_damage(tmp_path: Path, rows: Path) -> None:
    steady = Path(f"{rows}.steady")
    whole = steady.read_bytes()
    for position in range(0, len(whole), 97):
        steady.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        assert str(steady) in StartingRows(tmp_path)(TABLET, 3).damage


def test_rows_of_a_newer_build_stop_the_start(tmp_path: Path, rows: Path) -> None:
    data = MAGIC + msgspec.msgpack.encode([2, "whatever"])
    Path(f"{rows}.steady").write_bytes(data + crc32c(data).to_bytes(4, "little"))
    with pytest.raises(ConfigError, match=r"has format 2.*; nothing was changed"):
        StartingRows(tmp_path)(TABLET, 3)
