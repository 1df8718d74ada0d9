"""Settings of a store node, checked once at the start.

settings.py   from the command line
zoo_cfg.py    from a ZooKeeper configuration file
addresses.py  addresses of members, as the Raft configuration carries them and as ZooKeeper prints them
secrets.py    files with SASL users and the peers' secret
"""
