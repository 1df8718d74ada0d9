"""Region servers: they open and close regions, and serve requests for them under a lease.

Modules for the author of a service (docs/regionserver.md):

    opener.py             the interface of a service: open, close, report progress, answer requests
    service.py            run(settings, opener): the process
    request_gate.py       checks that a request may be answered: the region is open here and the lease holds
    storage/directory.py  an opener that keeps each region in a directory of its own
    client/               the client, which follows regions that move
    testing/              a small real cluster for the tests of a service, and fixtures for pytest

Modules of the server itself:

    replica/              each replica's life cycle: a pure table, the shell around it, steps in the store
    session/              registration, lease, heartbeats, the epoch, a graceful stop
    storage/              regions as directories; lock files with fencing tokens; purging
    kv/                   the built-in opener: key-value rows
    tablets/              replicated regions on the servers' own disks
    server.py             one server: one session after the other, checks of orders, admin page
    shared_directory.py   the identity of the directory that servers share
    order_routes.py       orders for tablets to the tablets, other orders to the shared regions
    figures.py, health.py, metrics.py, config.py, errors.py, workers.py

When data become durable:

    start code                              before it is used
    directory of a region, region.json      before OPENED is written
    OPENING, OPENED, CLOSING, CLOSED        in the store, before the next step begins
    row                                     before its write is acknowledged
    lock file of a region                   never synced: a power cut ends every process that the file would fence
"""

# First of all: it chooses the form of the modules that may be compiled (coord/compiled.py).
import coord  # noqa: F401
