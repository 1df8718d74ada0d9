"""All names of the client protocol in one module: constants, values, encoders and decoders.

    from coord.wire import records as r
    r.decode_path_watch(block, at, end), r.OP_GET_DATA, r.Stat

The names are defined in opcodes.py, values.py, codec.py and multi.py. This module stays interpreted: mypyc does not
support a star import.
"""

from coord.wire.codec import *  # noqa: F403
from coord.wire.multi import *  # noqa: F403
from coord.wire.opcodes import *  # noqa: F403
from coord.wire.values import *  # noqa: F403
