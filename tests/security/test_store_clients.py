"""A stranger at the store's client port, beside an honest client that is served and keeps its session throughout."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import make_digest_acl

from coord.errors import AUTH_FAILED, OK, THROTTLED_OP
from coord.server.clients.audit import LINES_PER_SESSION
from coord.tree.reads import MULTI_READ_BYTES_MAX
from coord.tree.sessions import IDENTITIES_MAX
from coord.wire import opcodes as op
from coord.wire import records as r
from coord.wire.digests import digest_of
from tests.security.store_node import Honest, Store, create, honest_client, running_store
from tests.support.helpers import eventually, finished, rk
from tests.support.rawclient import RawClient

pytestmark = pytest.mark.e2e

SUPER = "boss:a-secret"
SESSIONS_MAX = 40
WATCHES_MAX = 1000
#: Znodes whose number is asked for. Counting them 900 times took far longer than the honest client waits.
ZNODES = 20_000
OPEN = r.OPEN_ACL


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Yield a node that serves."""
    folder = tmp_path_factory.mktemp("clients")
    digest = folder / "super"
    digest.write_text(digest_of(*SUPER.split(":")) + "\n")
    digest.chmod(0o600)
    bounds = ("--max-sessions", str(SESSIONS_MAX), "--max-watches", str(WATCHES_MAX))
    with running_store(folder, "--super-digest-file", str(digest), *bounds) as made:
        yield made


@pytest.fixture
def honest(store: Store) -> Iterator[Honest]:
    """Yield an honest client."""
    with honest_client(store) as made:
        yield made


def test_reads_that_count_a_large_tree_hold_nobody_up(store: Store, honest: Honest) -> None:
    """Finding 10: 900 requests in 16 kB, sent at once. Each one walked the tree."""
    with contextlib.closing(store.stranger()) as stranger:
        assert stranger.ask(op.OP_CREATE, create(b"/many"))[0] == OK  # type: ignore[index]
        for first in range(0, ZNODES, 2000):
            creates = [r.CreateRequest(op.OP_CREATE, b"/many/%d" % i, b"", OPEN, 0) for i in range(first, first + 2000)]
            parts = [r.MultiOp(op.OP_CREATE, one.path, create=one) for one in creates]
            assert stranger.ask(op.OP_MULTI, r.encode_multi(parts))[0] == OK  # type: ignore[index]
        ask = [r.encode_request_frame(i, op.OP_GET_ALL_CHILDREN_NUMBER, r.encode_path(b"/many")) for i in range(900)]
        stranger.sock.sendall(b"".join(ask))
        honest.is_served()
        for _ in range(900):
            assert stranger.answer() == (OK, struct.pack("!i", ZNODES))
        honest.is_served()


def test_a_multi_read_answers_no_more_than_its_bound(store: Store, honest: Honest) -> None:
    """Finding 11: a frame of a few kilobytes asked for 270 MB."""
    with contextlib.closing(store.stranger()) as stranger:
        assert stranger.ask(op.OP_CREATE, create(b"/big", b"x" * 900_000))[0] == OK  # type: ignore[index]
        before = store.memory_mb()
        answer = stranger.ask(op.OP_MULTI_READ, r.encode_multi([r.MultiOp(op.OP_GET_DATA, b"/big")] * 300))
        assert answer is not None
        results = r.decode_multi_reply(answer[1], 0, len(answer[1]))
        assert len(answer[1]) <= MULTI_READ_BYTES_MAX
        assert [one.err for one in results] == [OK] + [THROTTLED_OP] * 299
        assert store.memory_mb() - before < 60
    honest.is_served()


def test_lines_of_audit_are_summed_up(store: Store, honest: Honest) -> None:
    """Finding 18: 5,000 proofs of one session in one piece."""
    with contextlib.closing(store.stranger()) as stranger:
        proofs = [
            r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", b"eve:%d" % (i % 50)))
            for i in range(5000)
        ]
        stranger.sock.sendall(b"".join(proofs))
        for _ in range(5000):
            assert stranger.frame() is not None
        honest.is_served()
        eventually(lambda: "summary session=" in store.log(), what="the sum")
        seconds = store.log().count("summary session=") + 1
        assert store.log().count("id='eve'") <= seconds * LINES_PER_SESSION


def test_watches_of_one_session_have_a_bound(store: Store, honest: Honest) -> None:
    """Finding 20: the connection of a session that wants more ends."""
    with contextlib.closing(store.stranger()) as stranger:
        paths = [b"/w/%d" % i for i in range(WATCHES_MAX + 1)]
        sets = r.WatchSets(1 << 60, [], paths, [], [], [])
        answer = stranger.ask(op.OP_SET_WATCHES, r.encode_set_watches(sets, second=False))
        assert answer is None or answer[0] != OK
        assert stranger.is_closed()
    honest.is_served()


def test_one_address_cannot_take_all_sessions(store: Store, honest: Honest) -> None:
    """Finding 17: one address opens all the sessions that it can get and closes its connections; another address still
    gets sessions."""
    taken = 0
    for _ in range(SESSIONS_MAX):
        with contextlib.closing(RawClient(store.address, source="127.0.0.66")) as client:
            taken += store.opens(client)
    assert 0 < taken <= SESSIONS_MAX // 2
    with contextlib.closing(RawClient(store.address, source="127.0.0.67")) as other:
        assert store.opens(other)
    assert "127.0.0.66 has" in store.log()
    honest.is_served()


def test_a_session_proves_no_more_than_a_bounded_number_of_passwords(store: Store, honest: Honest) -> None:
    """Finding 28: each guess is an identity of its session. The one that is too many ends the connection; the audit log
    sums the guesses up.

    Fails if `add_identities` knows no bound.
    """
    with contextlib.closing(store.stranger()) as stranger:
        guesses = [
            r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", b"victim:%d" % number))
            for number in range(IDENTITIES_MAX)
        ]
        stranger.sock.sendall(b"".join(guesses))
        answers = [stranger.answer() for _ in guesses]
        assert answers == [(OK, b"")] * (IDENTITIES_MAX - 1) + [(AUTH_FAILED, b"")], "the address is an identity, too"
        assert stranger.is_closed()
    eventually(lambda: f"lines={IDENTITIES_MAX - LINES_PER_SESSION}" in store.log(), what="the sum")
    honest.is_served()


def test_the_digest_of_the_superuser_is_on_no_command_line(store: Store, honest: Honest) -> None:
    """Finding 29: every user of the machine can read command lines. The superuser may do everything, others not."""
    line = Path(f"/proc/{store.process.pid}/cmdline").read_text()
    assert digest_of(*SUPER.split(":")) not in line
    client = honest.client
    client.create("/closed", b"x", acl=[make_digest_acl("somebody", "else", all=True)])
    with pytest.raises(NoAuthError):
        client.get("/closed")
    client.add_auth("digest", SUPER)
    assert client.get("/closed")[0] == b"x"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("server.x=127.0.0.1:1:2", "server.x: 'x' is not a server id"),
        ("skipACL=yes", "skipACL=yes is not supported"),
        ("clientPort=2182", "clientPort has another value"),
        ("enforce.auth.enabled=true\nenforce.auth.schemes=ip", "would keep nobody out"),
    ],
)
def test_files_that_would_open_a_door_end_the_start(tmp_path: Path, lines: str, says: str) -> None:
    """Finding 26: one line on stderr, exit status 2, and no data directory."""
    config = tmp_path / "zoo.cfg"
    config.write_text(f"dataDir={tmp_path / 'data'}\nclientPort=2181\n{lines}\n")
    ended = finished(rk("coord", "run", "--config", str(config)), 30)
    assert ended.returncode == 2
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()
