"""The durable side of a store node: write-ahead log and snapshots."""
