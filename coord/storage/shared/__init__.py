"""The shared log: one write-ahead log and one sync for all Raft groups of a region server.

items.py      input of the log: the changes of a turn; output: the contents of a log when it is opened
codec.py      the log's items as bytes (pure)
batch.py      changes of slots, checked and encoded (pure)
index.py      the durable state of every slot, and the places of its entries (pure)
trails.py     list the slots of the latest records, repeated in the following records (pure)
log.py        the log, open for appending
recovery.py   reading the log, and assigning damage to slots
loading.py    the entries of one slot, read back
listing.py    the records of one slot, as text

Records, seals, segments, torn tails and the extent are those of a store node's log (`coord.storage`). A segment is

    wals/<number:016x>.log       header, header, record*, [seal note] zeros

Guarantees, besides those of `coord.storage`:

- A turn's batch for which `write` has returned survives a power cut, for all groups in it. Any other batch survives
  whole or not at all.
- Damage affects only the slots that have lost a record. It is reported at each start until they are dropped.
- A segment is removed as soon as no slot has an entry above its floor in it.
"""
