"""Text of strangers for terminals and logs: names, keys, values and errors may hold anything.

A terminal obeys control characters (ESC ]52 sets the clipboard), and bidirectional controls make a terminal show
another text than the one received. So every process of `rk` writes through `QuotedStream`, which escapes them. Line
ends and tabs pass.

    \\x1b      a control character below U+0080, or a byte that is not UTF-8 (a surrogate of `os.fsdecode`)
    \\u202e    any other

Between `$'` and `'` a shell such as bash reads the same notation, so printed text can be pasted.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO, cast

__all__ = ["QuotedStream", "printable", "quoted", "unquoted"]

#: C0 but tab and line end, DEL, C1; bidirectional marks, embeddings, overrides and isolates; line and paragraph
#: separators; invisible tags; surrogates.
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Return `text` with every character escaped that a terminal would obey or hide."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class QuotedStream:
    """A text stream whose texts are printable. All else is the wrapped stream's, such as `buffer`."""

    def __init__(self, stream: TextIO) -> None:
        #: The wrapped stream, for code that sends controls of its own and quotes the texts itself.
        self.behind: TextIO = stream.behind if isinstance(stream, QuotedStream) else stream

    def write(self, text: str) -> int:
        """Write `text`, quoted. Return its length."""
        self.behind.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write every line, quoted."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)


def unquoted(stream: TextIO) -> TextIO:
    """Return the stream that obeys controls. The caller quotes the texts of others."""
    return stream.behind if isinstance(stream, QuotedStream) else stream


@contextlib.contextmanager
def quoted() -> Iterator[None]:
    """Let standard output and standard error write printable text only, until the end of the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, QuotedStream(one)) for one in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
