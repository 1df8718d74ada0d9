"""A soak with real processes that finds unlimited growth. `python -m tests.soak_real --minutes 120` (`make soak-real`).

A store of three nodes, masters and region servers work for hours under faults (`work.py`): tables are made and deleted,
regions are moved, split and merged, rows are written and read, masters and servers are killed. Meanwhile the memory and
the descriptors of every process, the znodes of every folder and the bytes on disk are measured (`figures.py`). Data
with a retention time grows until that time has passed, and must be flat from then on (`judge.py`).
"""
