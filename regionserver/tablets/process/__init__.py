"""The tablet host of a region server's process: the shell around the pure `host`. Read in this order:

interfaces.py   links, reactor, settings, the order to make a replica, figures
replica.py      one replica in this process; the members' servers in a configuration
floors.py       new floors of replicas in the log (pure)
reports.py      a server's report about a replica (pure)
log_thread.py   the running log: batches, their owners, whether the disk answers
opening.py      rows and group of a replica, opened on a thread
rows_work.py    rounds, reads, steady points, on threads
files_work.py   files of replicas made, rested, deleted, on a thread
life_work.py    replicas from start to removal
host.py         TabletHost: the turn, requests, time, trouble, start and stop
first_elections.py the member that stands first for election in a new tablet
in_place.py     rounds and reads on the reactor's thread (pure)
"""
