"""The connection of this server with the cluster.

instance.py      uuid for life, start code per start, lock of the data directory
registration.py  the registration znode and its session
lease.py         until when this server may serve (pure)
epochs.py        verification of fencing epochs with the store
master_link.py   the messages for each master (pure); heartbeats.py sends them
drain.py         a graceful stop: regions are moved away one by one
checking.py      the check of every request's caller
"""
