"""Consensus metadata: strict decoding, and promises that never decrease."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from regionserver.tablets.disk.consensus_meta import MAGIC, decode_meta, encode_meta, with_promise
from regionserver.tablets.disk.sealed import DamagedFile, NewerFormat, seal
from tests.unit.regionserver.tablets.disk.examples import MEMBERS, TABLET, meta


def test_it_comes_back_whole() -> None:
    found = decode_meta(encode_meta(meta(term=3, vote=1)), TABLET, "f")
    assert found == meta(term=3, vote=1)
    assert found.members() == MEMBERS


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tablet": ".hidden"}, "not the name of a tablet"),
        ({"number": 0}, "below 1"),
        ({"config_index": -1}, "negative"),
        ({"vote": 2}, "a vote for 2 in term 0"),
        ({"configuration": "AAAA"}, "not a configuration"),
        ({"colour": "red"}, "unknown field"),
    ],
)
def test_contents_that_no_build_writes_are_damage(changes: dict[str, Any], why: str) -> None:
    fields = {**msgspec.to_builtins(meta()), **changes}
    with pytest.raises(DamagedFile, match=why):
        decode_meta(seal(MAGIC, 1, msgspec.json.encode(fields)), TABLET, "f")


def test_another_tablets_file_is_damage() -> None:
    with pytest.raises(DamagedFile, match=r"it is of tablet t1.r7"):
        decode_meta(encode_meta(meta()), "t1.r8", "f")


def test_a_newer_format_is_refused() -> None:
    with pytest.raises(NewerFormat, match=r"^consensus-meta/x has format 2"):
        decode_meta(seal(MAGIC, 2, b""), TABLET, "consensus-meta/x")


def test_a_promise_is_kept() -> None:
    voted = with_promise(meta(term=3), 3, 1)
    assert (voted.term, voted.vote) == (3, 1)
    assert with_promise(voted, 3, 1) == voted
    with pytest.raises(ValueError, match="the vote of term 3 is for 1, not for 2"):
        with_promise(voted, 3, 2)
    with pytest.raises(ValueError, match="term 2 is below the present term 3"):
        with_promise(voted, 2, 1)
    assert with_promise(voted, 4, 0).vote == 0
