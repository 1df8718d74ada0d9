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
rows/      `rk put`, `get`, `scan`, `load`
tablets/   `rk tablet`
backup/    `rk backup`
topology/  the topology file `cluster.toml`, and what is made of it
security/  `rk certs`, `rk grant`
securing/  `rk secure`
html/      reports as HTML files
tables.py, regions.py, server.py, master.py, balance.py, data.py, simulate.py: one command group each
identity.py, replicas.py: one command each; splits.py: key ranges of a new table
"""
