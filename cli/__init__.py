"""The `rk` command: parse, call one function, print.

main.py    the entry table of all commands
common/    options, connections, names, output, errors
diagnose/  status, watch, why, history, fsck, audit
up/        a whole cluster on this machine
store/     `rk coord`
plan/      `rk plan`
drill/     `rk drill`
debug/     `rk debug`: files of stopped daemons
shell/     `rk context`, `rk completion`
tables.py, regions.py, server.py, master.py, balance.py, data.py, simulate.py: one command group each
"""
