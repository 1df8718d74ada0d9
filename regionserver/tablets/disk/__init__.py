"""The files of one server's tablets, apart from the shared log and the rows. Read in this order:

layout.py           names of files
life.py             states of files and of replicas: two tables that decide
sealed.py           the envelope of small files: format and checksum
superblock.py       the state of a tablet's files; the next superblock of each move
consensus_meta.py   configuration, term and vote
steps.py            creation, deletion and burning as lists of effects
startup.py          findings and decisions of a start: a table
instance.py         checks whether a data directory may be used at all
exported_log.py     the log of a former replica in a file of its own
files.py            the shell: reads the files, carries the effects out
joined.py           the shared log for files.py during a start
syncing.py          syncs of many small files at once, and of a long file

All but the last three are pure.
"""
