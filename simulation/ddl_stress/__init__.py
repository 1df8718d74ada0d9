"""The oracle of the DDL stress test (TS-04): clients change tables while masters come and go. Pure.

operations.py        what the clients ask
model.py             what they were answered, and whether the answers can be true
catalog_snapshot.py  the catalog held against the answers
"""
