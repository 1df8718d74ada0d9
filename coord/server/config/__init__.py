"""Settings of a store node, checked once at the start.

settings.py   settings as built from the command line
zoo_cfg.py    settings read from a ZooKeeper configuration file
addresses.py  addresses of members, in the Raft configuration and in ZooKeeper's notation
secrets.py    files with SASL users and the peers' secret
exposure.py   ports that serve everybody on addresses that other machines reach (pure)
"""
