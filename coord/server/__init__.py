"""The shell of a store node: sockets, disk and time around the pure parts."""
