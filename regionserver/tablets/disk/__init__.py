"""The files of one server's tablets, apart from the shared log and the rows. Read in this order:

layout.py           names of files
life.py             states of files and of replicas: two tables that decide
sealed.py           the envelope of small files: format and checksum
superblock.py       what the disk holds of a tablet; the next superblock of each move
consensus_meta.py   configuration, term and vote
steps.py            creation, deletion and burning as lists of effects
startup.py          what a start finds, and what it does: the table that decides
instance.py         whether a data directory may be used at all
exported_log.py     the log of a former replica as a file of its own
files.py            the shell: reads what is there, carries the effects out
joined.py           the shared log as files.py needs it at a start

All but the last three are pure.
"""
