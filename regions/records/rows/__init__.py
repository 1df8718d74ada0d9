"""Rows that follow their table's columns (docs/rows.md). Pure.

A table with columns stores the same keys and values as any other table: a text and bytes. The modules below define the
text and the bytes of a row.

values.py   values of each type: checks, texts of users, JSON
keys.py     key columns as a text whose order is the order of their values
codec.py    a row under one version of its table's schema: encoded, and decoded under the same or a later version
words.py    rows and keys as users write them: `id=5 name=Ada`

Servers store and compare bytes alone. So checksums, digests, copies and backups are the same for every table.
"""
