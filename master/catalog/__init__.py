"""Tables and regions in the store.

store.py     creation of the root, loading, other writes than those of tables
tables.py    writes of DDL: each is one fenced multi
ddl.py       DDL requests, step by step
locks.py     locks of DDL requests
janitor.py   background work on tables
purging.py   removal of the rows of deleted tables
undelete.py  restores deleted tables
formats.py   raises the cluster's format
tablet_progress.py  whether a request about tablets is carried out
lookup.py    tables, regions and replicas by name or id
forgetting.py removes the records of deleted tables after a time
servers_for.py servers for a table that is to be created
"""
