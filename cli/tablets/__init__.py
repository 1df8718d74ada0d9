"""Tablets for operators: `rk tablet`, and the reports of `rk fsck` and `rk why` about tablets.

command.py  rk tablet list, rk tablet show
display.py  printing of a tablet and its members
moving.py   rk tablet move, rk tablet intents
reading.py  tablets as the servers report them, without a master
waiting.py  waits for work of the masters, with progress
matrix.py   rk fsck's consensus matrix
why.py      rk why TABLET
copies.py   rk tablet copy, jobs, cancel
members.py  rk tablet leader-step-down, change-config
deep.py     rk fsck --deep
simulate.py rk simulate --tablets
former.py   names of servers that are not registered any more
upkeep/     replicas on the disks of their servers, without a master
"""
