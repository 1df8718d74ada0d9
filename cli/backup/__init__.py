"""`rk backup`: the rows of regions and the store in one directory, verified and restored.

format.py     the files' format and the manifest (pure)
files.py      reading and writing the files of a backup
source.py     a consistent snapshot of one region, read from its server, whichever that is
create.py     every region at its point, beside the store's snapshot
verify.py     every byte read again
restore.py    tables made and rows written from a backup; the result compared with the manifest
command.py    the commands
"""
