"""META: damage is found, and files from before the check are accepted."""

from __future__ import annotations

import json

import pytest

from coord.raft.membership import Configuration
from coord.server.recovery.meta import (
    META_FORMAT,
    META_FORMAT_WITH_LEVEL,
    MetaError,
    began_with,
    decode_meta,
    encode_meta,
    with_level,
)

CLUSTER = bytes(range(16))


@pytest.mark.parametrize("began", [b"", Configuration([1, 2, 3], [], [4]).encode()])
def test_flipped_bits_change_nothing_unnoticed(began: bytes) -> None:
    """Without the check, one bit made other voters or another cluster of these."""
    data = encode_meta(2, CLUSTER, [1, 2, 3], learners=[4], began=began)
    whole = decode_meta(data)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            try:
                found = decode_meta(bytes(damaged))
            except MetaError:
                continue
            if found["format"] not in (META_FORMAT, META_FORMAT_WITH_LEVEL):
                continue  # the caller refuses it
            # The name of the check itself was hit, or white space.
            assert {name: found[name] for name in whole} == whole
    for length in range(len(data) - 1):
        with pytest.raises(MetaError):
            decode_meta(data[:length])


def test_file_without_check_is_accepted_and_gets_one() -> None:
    old = b'{"format": 1, "node_id": 2, "cluster": "%s", "voters": [1, 2, 3]}' % CLUSTER.hex().encode()
    assert began_with(decode_meta(old)).voters == [1, 2, 3]
    marked = with_level(old)
    assert decode_meta(marked) == {**decode_meta(old), "format": 2}
    with pytest.raises(MetaError, match="checksum"):
        decode_meta(marked.replace(b'"node_id": 2', b'"node_id": 3'))


def test_an_earlier_build_may_raise_the_format() -> None:
    """It writes the other fields as it has read them, so the check is that of this build's file."""
    written = json.loads(encode_meta(2, CLUSTER, [1, 2, 3]))
    written["format"] = META_FORMAT_WITH_LEVEL
    assert decode_meta(json.dumps(written, indent=1).encode())["format"] == META_FORMAT_WITH_LEVEL


@pytest.mark.parametrize(
    "change", [{"cluster": "0g"}, {"cluster": 7}, {"voters": 3}, {"voters": None}, {"node_id": None}, {"format": "?"}]
)
def test_wrong_fields_are_damage_and_newer_formats_are_left_to_the_caller(change: dict[str, object]) -> None:
    fields = {"format": 1, "node_id": 2, "cluster": CLUSTER.hex(), "voters": [1, 2, 3], **change}
    if "format" in change:
        assert decode_meta(json.dumps(fields).encode())["format"] == "?"
        return
    with pytest.raises(MetaError):
        decode_meta(json.dumps(fields).encode())
