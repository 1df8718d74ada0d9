"""`rk backup`: the rows of regions and the store in one directory, verified and restored.

format.py     the files' format and the manifest (pure)
files.py      reading and writing the files of a backup
source.py     a consistent snapshot of one region, read from the server that has the region
create.py     every region at its point, beside the store's snapshot
verify.py     every byte read again
restore.py    makes tables and writes rows from a backup; compares the result with the manifest
command.py    the commands
"""
