"""Words in which a server refuses a message to a replica. Numbers are on the wire and keep their meaning."""

from __future__ import annotations

import enum


class Word(enum.IntEnum):
    """Why a replica does not process a Raft message."""

    INVALID_NAME = 1  #: another cluster, another server, or a number that belongs to another server
    DOES_NOT_EXIST = 2  #: no superblock: this server holds nothing of the tablet, and never makes a voter from nothing
    OLD_NUMBER = 3  #: for a former replica on this server
    OLDER = 4  #: for a replica that this server is still to get
    INVALID_TERM = 5  #: the sender's term is over
    DELETED = 6  #: a tombstone
    COPYING = 7  #: a copy is under way
    FAILED = 8  #: the replica's memory is sound, its rows or its code are not
    RESTING = 9  #: closed with its files, because the table is disabled
