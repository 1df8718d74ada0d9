"""The ZooKeeper client protocol without sockets: jute records, framing, handshake."""
