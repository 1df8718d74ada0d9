"""The ZooKeeper client protocol as a pure codec: bytes in, values out, and back. No sockets.

Reading order: `jute` (primitives), `opcodes` and `values` (the vocabulary), `codec` (an encoder and a decoder per
record), `client_conn` (framing and handshake of a connection), `sasl` (DIGEST-MD5), `digests` (ids of scheme digest).
`records` re-exports the whole vocabulary for tools and tests. Every module may be imported from outside. No module here
knows znodes or sessions.
"""
