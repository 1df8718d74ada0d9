"""RPC between daemons and tools: length-prefixed msgpack frames over TCP, typed with msgspec.

wire.py     the frames and the blocking client call
server.py   the listening side and the pipelined connections of reactor processes
"""
