"""Cutting keys into regions of nearly equal bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.common.errors import UsageFaultError
from cli.splits import SizedKey, read_keys, split_evenly
from cli.up.examples import example_path
from regions.records.partitioning import check_ranges, split_ranges

_entries = st.lists(
    st.builds(
        SizedKey, st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=4), st.integers(0, 10**9)
    ),
    min_size=1,
    max_size=60,
)


@given(_entries, st.integers(1, 60))
def test_any_input_cuts_into_exactly_that_many_regions_that_lose_no_byte(entries: list[SizedKey], regions: int) -> None:
    """Every split is a key of the input, they increase strictly, and the sizes add up."""
    keys = {entry.key for entry in entries}
    if len(keys) < regions:
        with pytest.raises(ValueError, match="different keys"):
            split_evenly(entries, regions)
        return
    cut = split_evenly(entries, regions)
    assert len(cut.sizes_bytes) == regions
    assert set(cut.keys) <= keys
    check_ranges(split_ranges(cut.keys))
    assert sum(cut.sizes_bytes) == sum(entry.size_bytes for entry in entries)
    assert split_evenly(reversed(entries), regions) == cut


def test_equal_keys_cut_equally() -> None:
    """Twelve keys of one byte into four regions: three keys each."""
    cut = split_evenly([SizedKey(chr(97 + n), 1) for n in range(12)], 4)
    assert cut.sizes_bytes == [3, 3, 3, 3]
    assert cut.keys == ["d", "g", "j"]


def test_one_huge_key_does_not_starve_the_regions_behind_it() -> None:
    """The rest is divided anew after the huge key."""
    cut = split_evenly([SizedKey("a", 1000), *(SizedKey(f"b{n}", 10) for n in range(9))], 4)
    assert cut.sizes_bytes == [1000, 30, 30, 30]


def test_example_cuts_into_200_regions_without_a_tiny_one() -> None:
    """The packages of a Debian release; the largest packages are more than twice an equal share."""
    cut = split_evenly(read_keys(example_path()), 200)
    share = sum(cut.sizes_bytes) / 200
    assert len(cut.sizes_bytes) == 200
    assert min(cut.sizes_bytes) > share * 0.4
    assert sum(1 for size in cut.sizes_bytes if abs(size - share) < share * 0.25) > 140


def test_plain_and_gzip_files_read_alike(tmp_path: Path) -> None:
    """Columns may be named; without a size column every key counts as one byte."""
    text = "name,weight\nalpha,3\nbeta,4\n"
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(text.encode()))
    wanted = [SizedKey("alpha", 3), SizedKey("beta", 4)]
    assert read_keys(tmp_path / "plain.csv", size_column="weight") == wanted
    assert read_keys(tmp_path / "packed.csv.gz", key_column="name", size_column="weight") == wanted
    assert read_keys(tmp_path / "plain.csv") == [SizedKey("alpha", 1), SizedKey("beta", 1)]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"k,size_bytes\na,x\n", "line 2"),
        (b"k,size_bytes\na\n", "line 2"),
        (b"k,size_bytes\na,-1\n", "negative"),
        (b"\x1f\x8bbroken", "gzip"),
        (b"k\n\xff\xfe\n", "UTF-8"),
    ],
)
def test_broken_file_is_named_with_its_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    """One clear error instead of a traceback."""
    path = tmp_path / "input.csv"
    path.write_bytes(content)
    with pytest.raises(UsageFaultError, match=complaint):
        read_keys(path)


def test_missing_file_and_column_are_named(tmp_path: Path) -> None:
    """A missing file has another exit status than an invalid one."""
    with pytest.raises(UsageFaultError, match=r"nowhere\.csv"):
        read_keys(tmp_path / "nowhere.csv")
    (tmp_path / "some.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageFaultError, match="no column 'c'"):
        read_keys(tmp_path / "some.csv", key_column="c")
