"""Tablets for operators: `rk tablet`, and the reports of `rk fsck` and `rk why` about tablets.

command.py  rk tablet list, rk tablet show
display.py  printing of a tablet and its members
reading.py  tablets as the servers report them, without a master
matrix.py   rk fsck's consensus matrix
why.py      rk why TABLET
"""
