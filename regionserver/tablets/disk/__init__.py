"""The files of one server's tablets, apart from the shared log and the rows. Read in this order:

layout.py           names of files
life.py             states of files and of replicas: two tables that decide
sealed.py           the envelope of small files: format and checksum
superblock.py       what the disk holds of a tablet; the next superblock of each move
consensus_meta.py   configuration, term and vote

All of them are pure.
"""
