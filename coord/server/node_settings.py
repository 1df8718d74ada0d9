"""Settings of one node, below the command line: `service` builds them from StoreSettings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from coord.security import process
from coord.security.revocation import ShownCredential
from coord.server.clients.authentication import Authenticator
from coord.server.clients.connection import Limits
from coord.server.config.addresses import Address, Members
from coord.server.config.settings import RAFT_TICK_MS, StoreSettings


class NodeSettings:
    """Settings of one node. Times in ms, sizes in bytes."""

    def __init__(
        self,
        node_id: int,
        *,
        tick_ms: int = 500,
        raft_tick_ms: int = 50,
        leader_absence_ms: int = 2000,
        contact_lease_ms: int = 1000,
        contact_grace_ms: int = 1250,
        snapshot_entries: int = 100_000,
        snapshot_bytes: int = 64 << 20,
        snapshot_again_ms: int = 30_000,
        keep_entries: int = 10_000,
        keep_bytes: int = 16 << 20,
        compare_every: int = 256,
        reap_interval_ms: int = 60_000,
        limits: Limits | None = None,
        members: Members | None = None,
        client: Address | None = None,
        reconfig_enabled: bool = True,
        linearizable_reads: bool = False,
        super_digest: str = "",
        sasl_users: Mapping[str, str] | None = None,
        required_schemes: Iterable[str] = (),
        shown_by: Callable[[str], ShownCredential | None] = lambda _: None,
        secret_part_of: Callable[[str], tuple[ShownCredential, str] | None] | None = None,
        read_only_mode: bool = False,
        enforce_quotas: bool = False,
        znodes_max: int = 0,
        data_bytes_max: int = 0,
    ) -> None:
        assert node_id > 0, node_id
        assert 0 < raft_tick_ms <= tick_ms, (raft_tick_ms, tick_ms)
        assert 0 < contact_lease_ms <= contact_grace_ms, (contact_lease_ms, contact_grace_ms)
        self.node_id = node_id
        #: ZooKeeper's tick: unit of session timeouts.
        self.tick_ms = tick_ms
        self.raft_tick_ms = raft_tick_ms
        #: A node that has had no leader for this long closes its client connections (ZooKeeper: timeliness).
        self.leader_absence_ms = leader_absence_ms
        #: A node answers its clients for this long after contact with the leader. Twice the time in which a follower
        #: detects a failed leader, so that few replies wait for an election.
        self.contact_lease_ms = contact_lease_ms
        #: As a leader: the time for which a node out of contact may have answered clients after its last report. The
        #: lease and a quarter, because clocks run at different rates.
        self.contact_grace_ms = contact_grace_ms
        #: Number of entries, or bytes of entries, after which a snapshot is due.
        self.snapshot_entries = snapshot_entries
        self.snapshot_bytes = snapshot_bytes
        #: A snapshot that failed, or that a peer could not use, is written again after this time.
        self.snapshot_again_ms = snapshot_again_ms
        #: Entries kept in memory below the snapshot for peers that are a little behind, and bytes of them.
        self.keep_entries = keep_entries
        self.keep_bytes = keep_bytes
        #: Under load, replicas compare their digests at every index that is a multiple of this number.
        self.compare_every = compare_every
        #: Interval between the leader's searches for empty containers and expired TTL znodes.
        self.reap_interval_ms = reap_interval_ms
        self.limits = limits or Limits(session_timeout_min_ms=2 * tick_ms, session_timeout_max_ms=20 * tick_ms)
        #: Addresses of a new store's members, as configured here; the first leader writes them into the configuration.
        self.members: Members = members or {}
        #: Client address of this node, announced to the leader.
        self.client = client
        #: Whether clients of this node with permission may change the membership.
        self.reconfig_enabled = reconfig_enabled
        #: Whether a majority confirms every read first, as after a sync.
        self.linearizable_reads = linearizable_reads
        #: `user:base64 of SHA-1` of the superuser; "" without a superuser.
        self.super_digest = super_digest
        #: SASL users and their passwords.
        self.sasl_users = sasl_users
        #: Schemes of which every connection must prove an identity; empty: none.
        self.required_schemes = tuple(required_schemes)
        #: Returns the principal whose token for store nodes a client has sent, None for another credential.
        self.shown_by = shown_by
        #: Returns key and last part of the token whose first part is a client's SASL user; None: no tokens.
        self.secret_part_of = secret_part_of
        #: Whether read-only clients are served while there is no leader.
        self.read_only_mode = read_only_mode
        #: As a leader: whether commands that would exceed a hard quota are rejected.
        self.enforce_quotas = enforce_quotas
        #: As a leader: limit of znodes, and of bytes of paths and data, at which commands that add more are rejected;
        #: 0: none.
        self.znodes_max = znodes_max
        self.data_bytes_max = data_bytes_max

    def authenticator(self, token: Callable[[int], bytes], monotonic_ms: Callable[[], int]) -> Authenticator:
        """Return the authenticator of the clients' credentials; `token(n)` returns n unpredictable bytes."""
        return Authenticator(
            token,
            super_digest=self.super_digest,
            sasl_users=self.sasl_users,
            required=self.required_schemes,
            shown_by=self.shown_by,
            secret_part_of=self.secret_part_of,
            is_securing=process.is_securing,
            monotonic_ms=monotonic_ms,
        )


def node_settings(settings: StoreSettings) -> NodeSettings:
    """Return the settings of the node that these settings of the command line describe."""
    return NodeSettings(
        settings.node_id,
        tick_ms=settings.tick_ms,
        raft_tick_ms=RAFT_TICK_MS,
        leader_absence_ms=settings.leader_absence_ms,
        snapshot_entries=settings.snapshot_entries,
        snapshot_bytes=settings.snapshot_bytes,
        keep_entries=settings.keep_entries,
        keep_bytes=settings.keep_bytes,
        members=settings.first_members(),
        client=settings.client_address,
        reconfig_enabled=settings.reconfig_enabled,
        linearizable_reads=settings.linearizable_reads,
        super_digest=settings.super_digest,
        sasl_users=settings.sasl_users,
        required_schemes=settings.required_schemes,
        shown_by=process.shown_by_store_token,
        secret_part_of=process.secret_part_of_store_token if process.own() is not None else None,
        read_only_mode=settings.read_only_mode,
        enforce_quotas=settings.enforce_quotas,
        znodes_max=settings.znodes_max,
        data_bytes_max=settings.data_bytes_max,
        reap_interval_ms=settings.reap_interval_ms,
        limits=Limits(
            outstanding_max=settings.outstanding_max,
            sessions_max=settings.sessions_max,
            sessions_per_address_max=settings.sessions_per_address_max,
            output_bytes_max=settings.output_bytes_max,
            watches_max=settings.watches_max,
            session_timeout_min_ms=settings.timeout_min_ms(),
            session_timeout_max_ms=settings.timeout_max_ms(),
        ),
    )
