"""The request to force a configuration, and the reply."""

from __future__ import annotations

import msgspec


class ForceConfiguration(msgspec.Struct, frozen=True, tag=True):
    """Make the voters `keep` the only members of a tablet, although no majority agrees. Reply: ConfigurationForced.

    The receiver must be the kept voter whose log reaches furthest. Entries that only lost members have are lost.
    """

    recipient: str
    tablet: str
    #: The receiver's member number, and the end of its log that was shown to the operator.
    number: int
    last_term: int
    last_index: int
    #: Voters that stay, the receiver among them.
    keep: list[int]
    #: A term above those of all members that are left.
    term: int


class ConfigurationForced(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Reply to ForceConfiguration: `why` nothing was changed ("" after success), and the id of the configuration."""

    why: str = ""
    term: int = 0
    index: int = 0
