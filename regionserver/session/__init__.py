"""This server and the rest of the cluster.

instance.py      uuid for life, start code per start, lock of the data directory
registration.py  the registration znode and its session
lease.py         until when this server may serve (pure)
master_link.py   what this server owes each master (pure); heartbeats.py sends it
drain.py         a graceful stop: regions move away one by one
"""
