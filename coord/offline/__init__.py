"""Looking at, checking, backing up and restoring the files of a node, without the node.

`directory` opens a data directory that no process uses, `describe` turns log entries into words, `verify` replays and
compares directories, `backup` knows the file of a backup and makes directories of it. Nothing in here is imported by a
running node.
"""
