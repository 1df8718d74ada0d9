"""The client protocol's vocabulary under one name: numbers, values, and an encoder and a decoder per record.

    from coord.wire import records as r
    r.decode_path_watch(block, at, end), r.OP_GET_DATA, r.Stat

What is there is defined in opcodes.py, values.py and codec.py. This module stays interpreted: mypyc carries no names
through a star import.
"""

from coord.wire.codec import *  # noqa: F403
from coord.wire.opcodes import *  # noqa: F403
from coord.wire.values import *  # noqa: F403
