"""Region servers: they open and close regions, and serve them under a lease.

What a service of your own uses (docs/regionserver.md):

    opener.py             THE INTERFACE of a service: open, close, progress, answer
    service.py            run(settings, opener): the process
    request_gate.py       which requests may be answered: the region is open here, under a valid lease
    storage/directory.py  an opener that keeps each region in a directory of its own
    client/               the client that follows regions

Inside:

    replica/              each replica's life cycle: a pure table, the shell around it, steps in the store
    session/              registration, lease, heartbeats, the epoch, a graceful stop
    storage/              regions as directories; lock files with fencing tokens; purging
    kv/                   the built-in opener: key-value rows
    shared_directory.py   the identity of the directory that servers share
    health.py, metrics.py, config.py, errors.py, workers.py, process.py

What is durable when. A start code: before it is used. A region's directory and region.json: before OPENED is written.
OPENING, OPENED with the location, CLOSING, CLOSED: when the store has them, and only then does the next thing happen.
A row: before its write is acknowledged. The lock file of a region is made anew by every open and never synced: a power
cut ends every process that it could fence.
"""
