"""Key-value regions: each region an LMDB file in its shared directory, served by its owner alone.

    messages.py   what clients ask, and the limits of it
    files.py      one region's file: reads, durable batches, growth, and what keeps a former owner out (worker threads)
    lanes.py      requests that wait are done together: one read transaction, one durable commit (reactor thread)
    service.py    the region opener that puts them together

An acknowledged write is in the file, synced, and no later opening of the region had begun when that was checked.
"""
