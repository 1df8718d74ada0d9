"""Bytes that may name a znode (PathUtils). The compiled and the interpreted form decide in different ways."""

from __future__ import annotations

import pytest

from coord.tree.node import is_valid_name, is_valid_path, last_slash, parent_of


@pytest.mark.parametrize("byte", range(256))
def test_ascii_names_are_printable_and_without_a_slash(byte: int) -> None:
    """At the beginning, in the middle and at the end; single bytes beyond ASCII are invalid UTF-8."""
    allowed = 0x20 <= byte <= 0x7E and byte != ord("/")
    one = bytes([byte])
    for name in (b"x" + one, one + b"x", b"x" + one + b"x"):
        assert is_valid_name(name) == allowed, name


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        (b"", False),
        (b".", False),
        (b"..", False),
        (b"...", True),
        (b".a", True),
        ("käse".encode(), True),
        ("\x80".encode(), False),
        ("\ue000".encode(), False),
        ("\U0001f600".encode(), False),
    ],
)
def test_names(name: bytes, is_valid: bool) -> None:
    """The empty name, the two with a special meaning, and names beyond ASCII."""
    assert is_valid_name(name) == is_valid
    assert is_valid_name(b"/\x01/" + name, 3) == is_valid
    assert is_valid_path(b"/a/" + name) == is_valid


@pytest.mark.parametrize(
    ("path", "slash", "parent"),
    [(b"/a", 0, b"/"), (b"/a/bc", 2, b"/a"), (b"/a/b/", 4, b"/a/b"), (b"//", 1, b"/"), (b"/", 0, b"/")],
)
def test_what_is_in_front_of_the_last_slash_is_the_parent(path: bytes, slash: int, parent: bytes) -> None:
    """Also for paths that name no znode."""
    assert last_slash(path) == path.rfind(b"/") == slash
    assert parent_of(path) == parent


def test_no_slash() -> None:
    """As in `rfind`."""
    assert last_slash(b"") == last_slash(b"abc") == -1
