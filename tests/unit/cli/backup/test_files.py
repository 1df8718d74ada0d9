"""The files of a backup: written files can be read again; any cut and any changed byte is found and named."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.backup import files
from cli.backup.files import (
    RowsWriter,
    begin_directory,
    check_region,
    clear_directory,
    finish_directory,
    read_manifest,
    read_rows,
    rows_file,
    take_over,
)
from cli.backup.format import (
    CHUNK,
    CHUNK_BYTES_MAX,
    HEAD,
    MANIFEST,
    UNFINISHED,
    DamagedBackupError,
    Manifest,
    RegionBackup,
    RowsTotals,
    TableBackup,
    decode_manifest,
    encode_manifest,
)
from cli.backup.verify import unexpected_files, verify
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from regions.records.model import TableRecord
from regionserver.kv.packing import pack_row
from regionserver.tablets.rows.digest import row_hash

ROWS: Final = {b"apple": b"1", b"banana": b"", b"melon": bytes(range(256)), "zürich".encode(): b"x" * 300}
TABLES: Final = st.dictionaries(st.text(min_size=1, max_size=20).map(str.encode), st.binary(max_size=60), max_size=30)


def write(path: Path, rows: dict[bytes, bytes], per_chunk: int = 2) -> RowsWriter:
    """Write a file of rows."""
    writer = RowsWriter(path)
    writer.begin()
    ordered = sorted(rows.items())
    for at in range(0, len(ordered), per_chunk):
        writer.add(b"".join(pack_row(key, value) for key, value in ordered[at : at + per_chunk]))
    writer.finish()
    return writer


def read(path: Path, start: str = "", end: str = "") -> dict[bytes, bytes]:
    """Return all rows of a file."""
    return {key: value for rows, _ in read_rows(path, start, end) for key, value in rows}


def entry(path: Path, totals: RowsTotals, region_id: str = "r1", start: str = "", end: str = "") -> RegionBackup:
    """Return the manifest's entry of a region."""
    size = path.stat().st_size
    return RegionBackup(
        region_id, start, end, rows_file(region_id), size, totals.rows, totals.size, totals.digest.hex(), 1
    )


def backup(folder: Path, rows: dict[bytes, bytes]) -> Manifest:
    """Make a backup of one region."""
    begin_directory(folder)
    totals = write(folder / rows_file("r1"), rows).totals
    table = TableBackup(TableRecord("t1", "fruits"), [entry(folder / rows_file("r1"), totals)])
    manifest = Manifest("b1", "c1", 1, 2, [table])
    finish_directory(folder, manifest)
    return manifest


@settings(max_examples=30, deadline=None)
@given(TABLES, st.integers(1, 7))
def test_rows_are_read_as_they_were_written(rows: dict[bytes, bytes], per_chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.rows"
        writer = write(path, rows, per_chunk)
        assert read(path) == rows
        size = sum(len(key) + len(value) for key, value in rows.items())
        digest = sum(row_hash(key, value) for key, value in rows.items()) % (1 << 128)
        assert writer.totals == RowsTotals(len(rows), size, digest.to_bytes(16, "little"))


def test_a_file_that_is_begun_anew_has_the_later_rows_alone(tmp_path: Path) -> None:
    writer = RowsWriter(tmp_path / "r.rows")
    writer.begin()
    writer.add(pack_row(b"former", b"1") * 1)
    writer.begin()
    writer.add(pack_row(b"later", b"2"))
    writer.finish()
    assert read(tmp_path / "r.rows") == {b"later": b"2"}
    assert writer.totals.rows == 1


def test_every_cut_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "r.rows"
    write(path, ROWS)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedBackupError, match=r"r\.rows is (truncated|damaged)"):
            read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedBackupError, match="bytes follow its end"):
        read(path)


def test_every_changed_byte_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "r.rows"
    write(path, ROWS)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[at] ^= bit
            path.write_bytes(damaged)
            with pytest.raises(DamagedBackupError, match=r"r\.rows (is|has)"):
                read(path)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_rejected_in_words(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.rows"
        path.write_bytes(b"RKRW\x01\0\0\0" + data)
        with pytest.raises(DamagedBackupError):
            read(path)
    with pytest.raises(DamagedBackupError):
        decode_manifest(data)


def test_a_chunk_of_the_largest_size_is_not_read_into_memory_when_it_is_longer(tmp_path: Path) -> None:
    path = tmp_path / "r.rows"
    path.write_bytes(HEAD.pack(b"RKRW", 1, 0) + CHUNK.pack(CHUNK_BYTES_MAX + 1, 0))
    with pytest.raises(DamagedBackupError, match=f"cannot have {CHUNK_BYTES_MAX + 1} bytes"):
        read(path)
    path.write_bytes(HEAD.pack(b"RKRW", 1, 0) + CHUNK.pack(CHUNK_BYTES_MAX, 0))
    with pytest.raises(DamagedBackupError, match="truncated within the chunk"):
        read(path)


def test_keys_out_of_order_or_range_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "r.rows"
    write(path, ROWS)
    assert read(path, "apple", "zürichs") == ROWS
    for start, end in (("b", ""), ("", "melon")):
        with pytest.raises(DamagedBackupError, match="out of order or range"):
            read(path, start, end)
    writer = RowsWriter(path)
    writer.begin()
    writer.add(pack_row(b"b", b""))
    writer.add(pack_row(b"b", b""))
    writer.finish()
    with pytest.raises(DamagedBackupError, match="out of order"):
        read(path)


def test_a_later_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.rows"
    path.write_bytes(HEAD.pack(b"RKRW", 2, 0))
    with pytest.raises(DamagedBackupError, match="version 2; this build reads up to version 1"):
        read(path)
    later = encode_manifest(Manifest("b", "c", 1, 2, [])).replace(b'"version":1', b'"version":2')
    with pytest.raises(DamagedBackupError, match="version 2; this build reads up to version 1"):
        decode_manifest(later)


def test_every_changed_byte_of_a_manifest_is_found(tmp_path: Path) -> None:
    manifest = backup(tmp_path / "b", ROWS)
    whole = (tmp_path / "b" / MANIFEST).read_bytes()
    assert decode_manifest(whole) == manifest
    for at in range(len(whole) - 1):  # the last byte is the end of the line
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with pytest.raises(DamagedBackupError):
            decode_manifest(bytes(damaged))
    for length in range(len(whole) - 1):
        with pytest.raises(DamagedBackupError):
            decode_manifest(whole[:length])


# --- the directory ----------------------------------------------------------------------------------------------------


def test_a_directory_is_a_backup_only_with_its_manifest(tmp_path: Path) -> None:
    """Interrupted at any step before the manifest has its name, the directory is unfinished, and begun anew."""
    folder = tmp_path / "b"
    begin_directory(folder)
    write(folder / rows_file("r9"), ROWS)
    with pytest.raises(CliError, match="unfinished backup"):
        read_manifest(folder)
    manifest = backup(folder, ROWS)
    assert read_manifest(folder) == manifest
    assert sorted(os.listdir(folder)) == [MANIFEST, "rows"]
    assert os.listdir(folder / "rows") == ["r1.rows"], "a file of the interrupted attempt is left"
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(CliError, match="has a backup already"):
        begin_directory(folder)
    clear_directory(folder)
    assert read_manifest(folder) == manifest, "a finished backup was removed"


def test_the_manifest_gets_its_name_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash while the manifest is written leaves an unfinished backup."""
    folder = tmp_path / "b"
    begin_directory(folder)
    synced: list[str] = []

    def sync(path: str) -> None:
        synced.append(path)
        if (folder / f".{MANIFEST}").exists():
            raise OSError(5, "Input/output error", path)

    monkeypatch.setattr(files, "sync_folder", sync)
    with pytest.raises(OSError, match="Input/output"):
        finish_directory(folder, Manifest("b", "c", 1, 2, []))
    assert not (folder / MANIFEST).exists()
    assert (folder / UNFINISHED).exists()
    assert synced[0].endswith("rows"), "the names of the rows' files were not synced first"
    clear_directory(folder)
    assert not folder.exists()


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "mine").write_text("x")
    with pytest.raises(CliError, match="not empty"):
        begin_directory(folder)
    with pytest.raises(UsageFaultError, match="does not exist"):
        begin_directory(tmp_path / "no" / "b")
    with pytest.raises(CliError, match="is a file"):
        begin_directory(folder / "mine")
    with pytest.raises(NotFoundError, match="has no backup"):
        read_manifest(folder)
    assert os.listdir(folder) == ["mine"]


def test_verify_names_each_damaged_file_and_its_region(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    manifest = backup(folder, ROWS)
    assert verify(folder, manifest) == []
    (folder / "rows" / "other.rows").write_bytes(b"")
    assert unexpected_files(folder, manifest) == ["rows/other.rows"]
    path = folder / rows_file("r1")
    write(path, {**ROWS, b"apple": b"2"})  # a whole file, but of other rows
    [found] = verify(folder, manifest)
    assert (found.file, found.belongs_to) == ("rows/r1.rows", "table fruits, region r1")
    assert "the manifest says 4 rows" in found.what
    path.unlink()
    [found] = verify(folder, manifest)
    assert found.what == f"{path} is missing"


def test_an_unchanged_region_has_the_bases_file_and_outlives_the_base(tmp_path: Path) -> None:
    base = backup(tmp_path / "base", ROWS)
    begin_directory(tmp_path / "next")
    [(_, region)] = base.regions()
    take_over(tmp_path / "base", tmp_path / "next", region)
    (tmp_path / "base" / region.file).unlink()
    check_region(tmp_path / "next", region)


def test_a_damaged_file_of_the_base_is_not_taken_over(tmp_path: Path) -> None:
    base = backup(tmp_path / "base", ROWS)
    begin_directory(tmp_path / "next")
    [(_, region)] = base.regions()
    data = bytearray((tmp_path / "base" / region.file).read_bytes())
    data[40] ^= 1
    (tmp_path / "base" / region.file).write_bytes(data)
    with pytest.raises(DamagedBackupError, match="does not match its checksum"):
        take_over(tmp_path / "base", tmp_path / "next", region)
    assert os.listdir(tmp_path / "next" / "rows") == []
