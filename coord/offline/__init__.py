"""Inspecting, checking, backing up and restoring the files of a stopped node.

`directory` opens a data directory that no process uses, `describe` formats log entries, `verify` replays and compares
directories, `salvage` recovers the state of a damaged directory, `backup` reads backup files and makes data directories
from them. A running node imports nothing from this package.
"""
