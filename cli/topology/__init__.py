"""The topology file `cluster.toml`: the daemons of a cluster and their machines, and the files generated from it.

model.py     the file, decoded and checked (pure)
checks.py    values of single keys, and the errors (pure)
edit.py      the file with one daemon more (pure)
words.py     the command line of each daemon on its machine (pure)
units.py     units of systemd for one machine (pure)
load.py      reads the file; knows the options that daemons have
command.py   `rk topology`; credentials.py `rk topology credentials`
systemd.py   `rk systemd`
"""
