"""What must hold after the faults, by what the clients were told.

- every acknowledged message lies where its acknowledgement said, in the log of whoever is master now, once
- nothing is there that nobody sent
- all replicas have the same bytes
- whoever reads gets every acknowledged message, at least once
"""

from __future__ import annotations

from aerobee.message import decode_records
from aerobee.simulation.cluster import QUEUES, TOPIC, Broken, Cluster, Node
from aerobee.store.stored_message import GetStatus

SETTLE_S = 180.0  # longest that the cluster may take after the last fault until everything is well


async def check_in_the_end(cluster: Cluster) -> None:
    """After the last fault: the cluster gets well by itself within SETTLE_S, and has lost nothing. Raises Broken."""
    await cluster.until(lambda: cluster.master() is not None, SETTLE_S, "no master after the last fault")
    await cluster.end_producers()
    await cluster.until(lambda: _all_equal(cluster), SETTLE_S, "the replicas never had the same log again")
    master = cluster.master()
    assert master is not None
    check_stored(cluster, master)
    check_equal(cluster)
    acked = [each.body for each in cluster.sent if each.offset >= 0]
    await cluster.until(
        lambda: all(body in cluster.received for body in acked),
        SETTLE_S,
        "acknowledged messages never reached the consumer",
    )
    unknown = set(cluster.received) - {each.body for each in cluster.sent}
    if unknown:
        raise Broken(f"received, but sent by nobody: {sorted(unknown)[:3]}")


def check_stored(cluster: Cluster, node: Node) -> None:
    """Every acknowledged message is at its place, and nothing that was not sent."""
    stored = read_all(node)
    places: dict[bytes, list[tuple[int, int]]] = {}
    for place, body in stored.items():
        places.setdefault(body, []).append(place)
    lost = [
        each
        for each in cluster.sent
        if each.offset >= 0 and stored.get((each.queue_id, each.offset)) != each.body
    ]
    if lost:
        first = lost[0]
        raise Broken(
            f"{len(lost)} acknowledged messages are not where their answers said, the first one {first.body[:20]!r} of "
            f"{first.at:.3f} s at queue {first.queue_id} offset {first.offset}: there is "
            f"{stored.get((first.queue_id, first.offset), b'nothing')[:20]!r}, it lies at {places.get(first.body, 'no place')}"
        )
    strangers = set(places) - {each.body for each in cluster.sent}
    if strangers:
        raise Broken(f"stored, but sent by nobody: {sorted(strangers)[:3]}")


def read_all(node: Node) -> dict[tuple[int, int], bytes]:
    """(queue, offset) -> body of everything that the broker has of the topic."""
    store, found = node.process.store, {}
    for queue_id in range(QUEUES):
        offset = store.min_offset(TOPIC, queue_id)
        while True:
            result = store.get_messages(TOPIC, queue_id, offset, count_max=32)
            if result.status is not GetStatus.FOUND:
                break
            for record in decode_records(result.body):
                found[queue_id, record.queue_offset] = record.body
                offset = record.queue_offset + 1
    return found


def check_equal(cluster: Cluster) -> None:
    """The logs are the same to the byte."""
    logs = {node.host.name: _log(node) for node in cluster.brokers}
    (first, content), *others = logs.items()
    for name, other in others:
        if other != content:
            at = next(
                (n for n, (a, b) in enumerate(zip(content, other, strict=False)) if a != b),
                min(len(content), len(other)),
            )
            raise Broken(f"the logs of {first} and {name} differ from byte {at} on")


def _all_equal(cluster: Cluster) -> bool:
    nodes = cluster.brokers
    return (
        all(node.process is not None for node in nodes)
        and len({node.process.store.log.end for node in nodes}) == 1
    )


def _log(node: Node) -> bytes:
    log = node.process.store.log
    content = b""
    at = log.min_offset
    while at < log.end:
        segment = log.segment_at(at)
        end = min(segment.end, log.end)
        content += log.read(at, end - at)
        at = end
    return content
