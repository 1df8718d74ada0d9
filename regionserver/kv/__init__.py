"""Key-value regions: each region is an LMDB file in its shared directory, served by its owner alone.

    messages.py        requests of clients and their limits
    files.py           one region's file: reads, durable batches, growth, fencing of a former owner (worker threads)
    held.py            snapshots that backups read page by page; packing.py: their rows as bytes (pure)
    request_queue.py   waiting requests, executed in batches: one read transaction, one durable commit (reactor thread)
    service.py         the region opener that combines the modules
    rows.py            the stored form of a row
    layout.py          names of a region's files, and how they are opened
    pages.py           the check that a file has all its pages
    snapshot.py        a snapshot of a region's rows
    heirs.py           rows of the regions that replace a split or merged region
    metrics.py         metrics of the service

An acknowledged write is durable in the file. Before the acknowledgment the server checks that no later opening of the
region has begun.
"""
