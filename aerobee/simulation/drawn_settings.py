"""The settings and the traffic of random runs, drawn from the seed of their start."""

from __future__ import annotations

import random
from importlib.util import find_spec

from aerobee.broker.assembly.grpc_packages import grpc_is_installed
from aerobee.simulation.node import Settings
from aerobee.simulation.traffic import WAYS, Kind, Traffic, Way

# number of successive seeds that share two starts: one for the even seeds, one for the odd seeds
SHARED_STARTS = 32
# Numbers of streams of successive starts. Every kind of message has a stream in each round of ROUND_STARTS starts.
STREAM_COUNTS = (0, 1, 2)
FEATURES_SHARE = 0.25  # share of starts with features, of those that wait for replicas
GRPC_SHARE = 0.5  # share of the starts with features in which gRPC clients take part
PASSING_SHARE = 0.25  # share of the starts with a topic that is repeatedly deleted and recreated
ALONE_SHARE = 0.15  # share of the starts whose master acknowledges alone
# allAckInSyncStateSet, inSyncReplicas, minInSyncReplicas
REPLICAS = (
    (True, 2, 2),
    (True, 2, 2),
    (True, 2, 1),
    (True, 1, 1),
    (False, 2, 2),
    (False, 2, 1),
    (False, 3, 2),
)
KINDS = tuple(Kind)
_READ_IN_EACH_WAY = tuple(kind for kind in KINDS if WAYS[kind] == tuple(Way))
ROUND_STARTS = len(KINDS) * len(STREAM_COUNTS) // sum(STREAM_COUNTS)
# A log of 64 KiB takes 0.07 or 0.33 s to read, as a log of some GiB does on a real machine.
BYTE_COSTS_S = (0.0, 0.0, 1e-6, 5e-6)
WRITER_DELAYS_S = (0.0, 0.0, 0.05, 0.5)


def has_grpc_packages() -> bool:
    """Whether gRPC clients can take part: protobuf and h2, of the extra `simulation`, are installed."""
    return grpc_is_installed() and find_spec("h2") is not None


def drawn_settings(seed: int) -> Settings:
    """The settings for a seed. Equal seeds give equal settings; an odd seed gives SYNC_FLUSH."""
    rng = random.Random(f"settings {seed}")
    all_acks, in_sync, min_in_sync = rng.choice(REPLICAS)
    waits = rng.random() >= ALONE_SHARE
    features = waits and rng.random() < FEATURES_SHARE
    return Settings(
        sync_disk=bool(seed % 2),
        waits_for_replicas=waits,
        all_acks=all_acks,
        in_sync=in_sync,
        min_in_sync=min_in_sync,
        has_ha_key=rng.random() < 0.3,
        is_indexed=rng.random() < 0.8,
        writer_delay_s=rng.choice(WRITER_DELAYS_S),
        features=features,
        has_grpc=features and random.Random(f"grpc {seed}").random() < GRPC_SHARE and has_grpc_packages(),
        byte_cost_s=random.Random(f"costs {seed}").choice(BYTE_COSTS_S),
        has_passing_topic=rng.random() < PASSING_SHARE,
        changes_masters=True,
        streams=_streams(seed),
    )


def _streams(seed: int) -> tuple[Traffic, ...]:
    """The streams of this start. Kinds of messages and of consumption are drawn in rounds, because a draw for each start
    leaves out some of them for hundreds of runs: a round has every kind of message once, and every kind of consumption.
    """
    number, index = divmod(seed // SHARED_STARTS * 2 + seed % 2, ROUND_STARTS)
    order = random.Random(f"kinds {number}").sample(KINDS, len(KINDS))
    counts = [STREAM_COUNTS[each % len(STREAM_COUNTS)] for each in range(index + 1)]
    end = sum(counts)
    rng = random.Random(f"consumption {number}")
    ways = dict(zip(_READ_IN_EACH_WAY, rng.sample(tuple(Way), len(Way)), strict=True))
    drawn = {kind: ways[kind] if kind in ways else rng.choice(WAYS[kind]) for kind in KINDS}
    return tuple(Traffic(kind, drawn[kind]) for kind in order[end - counts[-1] : end])
