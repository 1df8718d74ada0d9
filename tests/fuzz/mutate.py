"""New cases from old ones: random changes, splices, and numbers that often break lengths."""

from __future__ import annotations

import random
import struct

#: Numbers at which counts and lengths often break.
_NUMBERS = (0, 1, 2, 4, 16, 127, 128, 255, 256, 32767, 65535, 0xFFFFF, 0x100000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
BYTES_MAX = 1 << 16


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    """Return a case of the corpus, changed in one to a few places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _change(rng, data, corpus)
    return bytes(data[:BYTES_MAX])


def _change(rng: random.Random, data: bytearray, corpus: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(8)
    if kind == 0 and data:
        data[at % len(data)] ^= 1 << rng.randrange(8)
    elif kind == 1 and data:
        data[at % len(data)] = rng.randrange(256)
    elif kind == 2:
        data[at : at + 4] = struct.pack(">I", rng.choice(_NUMBERS))
    elif kind == 3:
        data[at : at + 1 + rng.randrange(16)] = b""
    elif kind == 4:
        data[at:at] = rng.randbytes(1 + rng.randrange(8))
    elif kind == 5:
        size = 1 + rng.randrange(64)
        data[at:at] = data[at : at + size] * (1 + rng.randrange(4))
    elif kind == 6:
        other = rng.choice(corpus)
        start = rng.randrange(len(other) + 1)
        data[at:] = other[start:]
    else:
        data[at:] = b""
