"""Shared parts of `rk put`, `get`, `scan`, `load`: files of rows, and rows as people and programs read them.

load.py     `rk load`
opening.py  a client of regions for a command, and its errors
files.py    rows of CSV and Parquet files as changes of a table; errors name file, line and column
writing.py  rows in batches by region, several at once
spark.py    `rk load --spark`: the job of Spark, its progress and errors
show.py     rows as a table, CSV or JSON
"""
