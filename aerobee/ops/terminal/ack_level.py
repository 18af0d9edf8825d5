"""The durability that an acknowledgement states, one sentence per level; a test compares docs/acknowledgements.md."""

from __future__ import annotations

from collections.abc import Mapping

SENTENCES: Mapping[str, str] = {
    "stored": "stored: survives a crash of the broker process",
    "flushed": "flushed: survives power loss of the broker's machine",
    "replicated": "replicated: survives loss of the broker's machine, if one in-sync replica lives",
    "flushed+replicated": "flushed+replicated: survives power loss, and loss of the broker's machine",
}
UNKNOWN = "unknown: the broker did not report its settings"


def ack_sentence(flush_disk_type: str, broker_role: str, in_sync_replicas: int = 1) -> str:
    """The sentence for a broker's settings.

    A SYNC_MASTER that waits for no more than itself (inSyncReplicas 1, RocketMQ's default) replicates asynchronously.
    """
    return _sentence(flush_disk_type, is_replicated=broker_role == "SYNC_MASTER" and in_sync_replicas > 1)


def ack_sentence_of(config: Mapping[str, str]) -> str:
    """The same from the settings that a broker reports."""
    if "flushDiskType" not in config:
        return UNKNOWN
    replicas = config.get("inSyncReplicas", "1")
    if config.get("enableControllerMode") == "true":
        # Controllers elect from the sync state set: an acknowledgement waits for all its members, or for none.
        needs_all = config.get("allAckInSyncStateSet") == "true" or (
            replicas.isdecimal() and int(replicas) > 1
        )
        return _sentence(config["flushDiskType"], is_replicated=needs_all)
    return ack_sentence(
        config["flushDiskType"],
        config.get("brokerRole", "ASYNC_MASTER"),
        int(replicas) if replicas.isdecimal() else 1,
    )


def _sentence(flush_disk_type: str, *, is_replicated: bool) -> str:
    names = ["flushed"] * (flush_disk_type == "SYNC_FLUSH") + ["replicated"] * is_replicated
    return SENTENCES["+".join(names) or "stored"]
