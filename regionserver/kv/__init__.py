"""Key-value regions: each region is an LMDB file in its shared directory, served by its owner alone.

    messages.py        requests of clients and their limits
    files.py           one region's file: reads, durable batches, growth, fencing of a former owner (worker threads)
    held.py            snapshots that backups read page by page; packing.py: their rows as bytes (pure)
    request_queue.py   waiting requests are executed in batches: one read transaction, one durable commit (reactor
    thread) service.py         the region opener that combines the modules

An acknowledged write is synced to the file, and no later opening of the region had begun when this was checked.
"""
