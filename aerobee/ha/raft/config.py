"""Times and bounds of a Raft node. Every node of a group must have the same values: the lease depends on them."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    """Election times and the bounds of messages, windows and queues."""

    # A follower that has heard its leader grants no vote for this long; it stands for election after this long to
    # twice as long without a leader.
    election_timeout_ms: int = 1_000
    """Time without a leader after which a member starts an election, in ms."""
    heartbeat_interval_ms: int = 200
    """Interval between two heartbeats of a leader, in ms."""
    clock_drift_ratio_max: float = 0.02
    """Assumed maximum drift of a monotonic clock. The leader's lease is shorter by it."""
    entry_bytes_max: int = 1 << 20
    """Maximum size of one proposal, in bytes."""
    append_bytes_max: int = 1 << 20
    """Maximum size of the entries of one append message, in bytes. A single entry always fits."""
    append_entries_max: int = 512
    """Maximum number of entries of one append message."""
    in_flight_max: int = 16
    """Maximum number of unanswered append messages per peer."""
    snapshot_chunk_bytes: int = 256 << 10
    """Size of the part of a snapshot in one message, in bytes."""
    snapshot_bytes_max: int = 256 << 20
    """Maximum size of a snapshot, in bytes. A larger one is refused."""
    uncommitted_bytes_max: int = 16 << 20
    """Maximum size of uncommitted proposals, in bytes. Further ones are refused."""
    reads_max: int = 4_096
    """Maximum number of reads that wait for a quorum. Further ones are refused."""
    members_max: int = 31
    """Maximum number of members of a group."""
    snapshot_interval_entries: int = 10_000
    """Number of log entries between two snapshots."""
    entries_kept_max: int = 1_000
    """Number of log entries kept after a snapshot, so that a slow follower needs no snapshot."""

    def __post_init__(self) -> None:
        positive = (
            "election_timeout_ms",
            "heartbeat_interval_ms",
            "entry_bytes_max",
            "append_bytes_max",
            "append_entries_max",
            "in_flight_max",
            "snapshot_chunk_bytes",
            "snapshot_bytes_max",
            "uncommitted_bytes_max",
            "reads_max",
            "members_max",
            "snapshot_interval_entries",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise ConfigError(f"raft.{name} is {getattr(self, name)}, must be above 0")
        if self.heartbeat_interval_ms * 2 > self.election_timeout_ms:
            raise ConfigError(
                f"raft.heartbeat_interval_ms is {self.heartbeat_interval_ms}, must be at most half of "
                f"election_timeout_ms ({self.election_timeout_ms}): one lost heartbeat would end a leadership"
            )
        if not 0 <= self.clock_drift_ratio_max < 0.5:
            raise ConfigError(f"raft.clock_drift_ratio_max is {self.clock_drift_ratio_max}, must be 0 to 0.5")
        if self.entries_kept_max < 0:
            raise ConfigError(f"raft.entries_kept_max is {self.entries_kept_max}, must be 0 or more")

    @property
    def lease_ms(self) -> float:
        """Time for which a leader may trust one answered round: it ends before the first of its voters may vote again.

        A voter's timeout lasts at least timeout / (1 + drift) of true time, the leader's lease at most
        lease / (1 - drift).
        """
        drift = self.clock_drift_ratio_max
        return self.election_timeout_ms * (1 - drift) / (1 + drift)

    @property
    def message_bytes_max(self) -> int:
        """The largest message that a node of this configuration makes, with space for its head."""
        return max(self.append_bytes_max + self.entry_bytes_max, self.snapshot_chunk_bytes) + (64 << 10)
