"""Settings of a store node, checked once at the start.

settings.py  from the command line
zoo_cfg.py   from a ZooKeeper configuration file
secrets.py   files with SASL users and the peers' secret
"""
