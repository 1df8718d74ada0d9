"""coord.security.printable: what a terminal would obey or hide is escaped, everything else passes."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

from coord.security.printable import QuotedStream, printable, quoted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]52;c;eA==\x07", "\\x1b]52;c;eA==\\x07"),
        ("a\rb\x08c\x7f", "a\\x0db\\x08c\\x7f"),
        ("\x9b2J", "\\u009b2J"),
        ("exe\u202egnp.\u2066x\u2069", "exe\\u202egnp.\\u2066x\\u2069"),
        ("\u2028\ufeff\U000e0041", "\\u2028\\ufeff\\U000e0041"),
        (os.fsdecode(b"k\xff\xc3"), "k\\xff\\xc3"),
        ("\ud800", "\\ud800"),
        ("\tübergröße 名前 🎉 a\\b\n", "\tübergröße 名前 🎉 a\\b\n"),
    ],
    ids=["clipboard", "overwriting", "C1", "bidirectional", "invisible", "no UTF-8", "surrogate", "harmless"],
)
def test_dangerous_characters_are_escaped(text: str, expected: str) -> None:
    """Twice is the same as once; the result can be encoded."""
    assert printable(text) == expected
    assert printable(expected) == expected
    expected.encode()


def test_streams_are_quoted_within_the_block(capsys: pytest.CaptureFixture[str]) -> None:
    """All that is written, by any function; a stream that is quoted twice has one stream behind it."""
    out = sys.stdout
    with quoted():
        print("\x1b[2J")  # noqa: T201
        sys.stderr.writelines(["\x1b", "a"])
        assert isinstance(sys.stdout, QuotedStream)
        assert QuotedStream(sys.stdout).behind is out
        assert sys.stdout.encoding == out.encoding
    assert sys.stdout is out
    assert capsys.readouterr() == ("\\x1b[2J\n", "\\x1ba")


def test_escapes_within_json_are_those_of_json() -> None:
    """A document stays one, and says the same, whatever a name holds (DEL is escaped by `cli.common.output`)."""
    name = "".join(chr(code) for code in range(0x3000) if code != 0x7F)
    stream = io.StringIO()
    QuotedStream(stream).write(json.dumps(name, ensure_ascii=False))
    assert json.loads(stream.getvalue()) == name
    assert printable(stream.getvalue()) == stream.getvalue()
