"""The store: a ZooKeeper-compatible tree of znodes replicated by Raft.

    wire/      ZooKeeper's client protocol (pure)
    raft/      consensus (pure)
    tree/      znodes, sessions, watches and the commands that change them (pure)
    storage/   write-ahead log and snapshot files; the log that a server's tablets share
    server/    a store node: sockets, disk and time around the pure parts
    offline/   the files of a stopped node
    peers/     links between processes of one kind, and the reactor with turns
    client/    the ZooKeeper client for processes with a Twisted reactor
    rpc/       RPC between daemons and tools
    tls/       TLS contexts, key stores
    security/  identities of daemons and users, and their proof
    metrics/   definitions of Prometheus metrics, and durations in buckets

compiled.py lists the modules that mypyc compiles. env.py has the interfaces to clock, randomness and disk; env_os.py
implements them. daemon.py, http.py, admin_token.py and logs.py serve every daemon; kill_points.py kills one in a test.
durable.py replaces small files. newcomers.py bounds what callers cost before they have proved anything. hosts.py knows
loopback addresses. errors.py has the errors of the store.
"""

from pathlib import Path

from coord.compiled import choose_form

choose_form(Path(__path__[0]))
