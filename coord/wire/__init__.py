"""The ZooKeeper client protocol without sockets: bytes in, values out, and back.

Reading order: `jute` (primitives), `opcodes` and `values` (the vocabulary), `codec` (an encoder and a decoder per
record), `client_conn` (framing and handshake of a connection), `sasl` (DIGEST-MD5). `records` has the whole vocabulary
under one name, for tools and tests. Everything may be used from outside. Nothing here has a znode or a session.
"""
