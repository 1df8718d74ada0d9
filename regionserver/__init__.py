"""Region servers: they open and close regions and hold them under a lease.

    service.py    the process: one incarnation (session, registration, lease) after the other; RPC; status
    report.py     membership in the store: registration, fencing, renewal of the lease; lease.py: the lease itself, pure
    replicas.py   what each replica does next, pure; life.py: its life cycle as data; judge.py: what a read-back means
    host.py       carries those decisions out; steps.py: steps in multis; workers.py: threads for the opener
    opener.py     the interface of whatever opens and closes regions and answers for them; serving.py: its gate
    directory.py  regions as directories; owner.py: which server may have one open, by marks in the store's order
    shared.py     the identity of the directory that all servers share, compared before a server registers
    kv/           the built-in opener: key-value rows; pages.py, rows.py: what is checked of its files
    client/       the client that follows regions; load.py: a load for drills, which knows what was lost
    instance.py   the server's own directory: uuid, start codes, lock

A service of your own brings its `RegionOpener` and calls `service.run(settings, opener)`: docs/regionserver.md.

What is durable when. A start code: before it is used. A region's directory and region.json: before OPENED is written.
OPENING, OPENED with the location, CLOSING, CLOSED: when the store has them, and only then does the next thing happen.
The owner's mark is a lock and a name, made anew by every open, and never synced: a power cut ends all who could be
fenced by it. A row: before its write is acknowledged.
"""
