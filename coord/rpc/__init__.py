"""RPC between daemons and tools: length-prefixed msgpack frames over TCP, typed with msgspec.

wire.py      frames and errors (pure)
server.py    the listening side and the pipelined connections of reactor processes
blocking.py  one request by a blocking socket, for tools
"""
