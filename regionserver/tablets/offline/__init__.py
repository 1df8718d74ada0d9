"""The tablets of a stopped server, for people: `rk debug tablet`. Nothing is written.

directory.py   superblocks, consensus metadata and the log; what a start would do
rows.py        the rows of one tablet
steady_points.py    what a start knows of rows before it opens them
"""
