"""Tablets for operators: `rk tablet`, and what `rk fsck` and `rk why` say of tablets.

command.py  rk tablet list, rk tablet show
display.py  how a tablet and its members are printed
reading.py  tablets as the servers themselves see them, without a master
matrix.py   rk fsck's consensus matrix
why.py      rk why TABLET
"""
