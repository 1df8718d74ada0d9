"""Tablets for operators: `rk tablet`, and the reports of `rk fsck` and `rk why` about tablets.

command.py  rk tablet list, rk tablet show
display.py  printing of a tablet and its members
moving.py   rk tablet move, rk tablet intents
reading.py  tablets as the servers report them, without a master
waiting.py  waits for work of the masters, with progress
matrix.py   rk fsck's consensus matrix
why.py      rk why TABLET
"""
