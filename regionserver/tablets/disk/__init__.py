"""The files of one server's tablets, apart from the shared log and the rows.

Everything in the table is pure; files.py alone touches the disk, through the door `coord.env.Disk`.
"""
