"""The oracle of the DDL stress test (TS-04): clients change tables while masters fail over. Pure.

operations.py        the clients' requests
model.py             the results that the clients received, and whether these results can all be true
catalog_snapshot.py  the comparison of the catalog with the results
"""
