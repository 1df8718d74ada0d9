"""AccessVerdict lists beside the wanted one: what is open, lacking, strange or unreadable, and how it is said."""

from __future__ import annotations

import pytest

from coord.client.access_lists import AccessLine, AccessVerdict, compare, describe, has_credential

DAEMONS = AccessLine(31, "digest", "rk:abc=")
OPERATORS = AccessLine(1, "x509", "CN=ops")
EVERYONE = AccessLine(31, "world", "anyone")
WANTED = [DAEMONS, OPERATORS]


@pytest.mark.parametrize(
    ("found", "judged"),
    [
        (WANTED, AccessVerdict.RIGHT),
        ([OPERATORS, DAEMONS], AccessVerdict.RIGHT),
        ([AccessLine(30, *DAEMONS[1:]), AccessLine(1, *DAEMONS[1:]), OPERATORS], AccessVerdict.RIGHT),
        ([EVERYONE], AccessVerdict.OPEN),
        ([*WANTED, AccessLine(1, "world", "anyone")], AccessVerdict.OPEN),
        ([*WANTED, AccessLine(2, "ip", "10.0.0.0/8")], AccessVerdict.OPEN),
        ([*WANTED, AccessLine(0, "world", "anyone")], AccessVerdict.RIGHT),
        ([AccessLine(15, *DAEMONS[1:]), OPERATORS], AccessVerdict.LACKING),
        ([OPERATORS], AccessVerdict.LACKING),
        ([], AccessVerdict.LACKING),
        ([*WANTED, AccessLine(1, "digest", "eve:abc=")], AccessVerdict.STRANGE),
        ([DAEMONS, AccessLine(3, *OPERATORS[1:])], AccessVerdict.STRANGE),
        ([DAEMONS], AccessVerdict.UNREADABLE),
    ],
)
def test_every_difference_has_a_name(found: list[AccessLine], judged: AccessVerdict) -> None:
    """The order of lines does not count, and lines of one identity add up."""
    assert compare(found, WANTED) is judged


def test_everybody_may_do_what_is_wanted_of_everybody() -> None:
    """While a cluster is being secured, clients without a credential may read."""
    reading = [*WANTED, AccessLine(1, "world", "anyone")]
    assert compare(reading, reading) is AccessVerdict.RIGHT
    assert compare([*WANTED, EVERYONE], reading) is AccessVerdict.OPEN
    assert compare(WANTED, reading) is AccessVerdict.UNREADABLE


def test_a_daemon_has_the_credential_whatever_others_may() -> None:
    """Its registration is open while the cluster is being secured."""
    assert has_credential([*WANTED, EVERYONE], WANTED)
    assert not has_credential([EVERYONE], WANTED)
    assert not has_credential([EVERYONE], [OPERATORS])


def test_who_sees_no_digests_judges_what_everybody_may() -> None:
    """A reader gets the list with `x` in place of digests, which equals no digest."""
    masked = [AccessLine(31, "digest", "rk:x"), OPERATORS]
    assert compare(masked, [AccessLine(31, "digest", "ops:def=")]) is AccessVerdict.RIGHT
    assert compare([*masked, EVERYONE], [AccessLine(31, "digest", "ops:def=")]) is AccessVerdict.OPEN


def test_a_list_in_words_has_no_hash() -> None:
    """As it goes to the terminal and into reports."""
    assert describe([EVERYONE, DAEMONS]) == "everyone may rwcda, digest rk may rwcda"
    assert describe([OPERATORS, AccessLine(0, "sasl", "bob")]) == "x509 CN=ops may r, sasl bob may nothing"
    assert describe([]) == "nobody may do anything"
