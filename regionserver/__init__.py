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
    tablets/              replicated regions on the servers' own disks
    server.py             one server: sessions one after the other, orders checked, figures shown
    shared_directory.py   the identity of the directory that servers share
    health.py, metrics.py, config.py, errors.py, workers.py

When things become durable:

    start code                              before it is used
    directory of a region, region.json      before OPENED is written
    OPENING, OPENED, CLOSING, CLOSED        in the store, before the next thing happens
    row                                     before its write is acknowledged
    lock file of a region                   never: a power cut ends every process that the file could fence
"""
