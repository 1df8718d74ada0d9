"""Tables and regions in the store.

store.py    layout of the root, loading, writes that are not about tables
tables.py   writes of DDL: each one fenced multi
ddl.py      DDL requests, step by step; locks.py decides who waits for whom
janitor.py  what is done about tables without a request
"""
