"""What `rk put`, `get`, `scan`, `load` share: files of rows, and rows as people and programs read them.

files.py    rows of CSV and Parquet files as changes of a table; errors name file, line and column
show.py     rows as a table, CSV or JSON
"""
