"""RPC between daemons and tools: length-prefixed msgpack frames over TCP, typed with msgspec.

wire.py        frames and errors (pure)
connection.py  one end of a connection of reactor processes
budgets.py     what callers may use of a server
server.py      the listening side
client.py      the calling side, pipelined
blocking.py    one request by a blocking socket, for tools
"""
