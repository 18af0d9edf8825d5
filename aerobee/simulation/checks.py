"""Invariants after the faults, from the replies that clients received. See broken.Checker for the names."""

from __future__ import annotations

from aerobee.message import decode_records
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.cluster import Cluster
from aerobee.simulation.feature_checks import settle
from aerobee.simulation.message_checks import check_acknowledged, check_once, check_order
from aerobee.simulation.names import GROUP, QUEUES, TOPIC
from aerobee.simulation.node import Node
from aerobee.simulation.party import Sent
from aerobee.simulation.passing_checks import settle as settle_passing
from aerobee.simulation.stream_checks import check_stream, missing
from aerobee.store.log.stored_message import GetStatus

SETTLE_S = 90.0  # maximum time from the last fault until the cluster has recovered


async def check_in_the_end(cluster: Cluster) -> None:
    """After the last fault: the cluster recovers by itself within SETTLE_S and has lost nothing. Raises Broken."""
    clients = cluster.clients
    await cluster.until(lambda: cluster.master() is not None, SETTLE_S, "no master after the last fault")
    count = sum(each.offset >= 0 for each in clients.sent)
    await cluster.until(
        lambda: sum(each.offset >= 0 for each in clients.sent) > count,
        SETTLE_S,
        "nothing is acknowledged any more",
    )
    await clients.end_producers()
    for stream in cluster.streams:
        await stream.end_producer()
    if cluster.features is not None:
        await settle(cluster, cluster.features)
    if cluster.passing is not None:
        await settle_passing(cluster, cluster.passing)
    # A master that was just deposed may not know it yet while all logs are equal: the checker ONE_MASTER
    # judges its acknowledgements.
    await cluster.until(
        lambda: _all_as_long(cluster) and cluster.master() is not None,
        SETTLE_S,
        "the replicas never had logs of one length and one master again",
    )
    # A replica that does not know its new master yet may have other bytes after the confirm offset until it
    # truncates them.
    await cluster.until(
        lambda: cluster.clock.uncharged(lambda: _all_equal(cluster)) and cluster.master() is not None,
        SETTLE_S,
        "the logs of the replicas stay different",
        checker=Checker.EQUAL,
    )
    cluster.raise_broken()
    master = cluster.clock.uncharged(lambda: _check_logs(cluster))
    if cluster.settings.waits_for_replicas:
        wanted = [each.body for each in clients.sent if each.offset >= 0]
        await cluster.until(
            lambda: all(body in clients.received for body in wanted),
            SETTLE_S,
            "acknowledged messages never reached the consumer",
            checker=Checker.DELIVERED,
        )
        cluster.clock.uncharged(lambda: check_committed(cluster, master))
    await cluster.until(
        lambda: not any(missing(stream, cluster.settings.waits_for_replicas) for stream in cluster.streams),
        SETTLE_S,
        "acknowledged messages never reached the group of their stream",
        checker=Checker.DELIVERED,
    )
    cluster.raise_broken()


def _check_logs(cluster: Cluster) -> Node:
    """Compares the replicas' equal logs with the replies to clients. Returns the master."""
    clients = cluster.clients
    cluster.watch.look()
    master = cluster.master()
    assert master is not None
    if cluster.settings.controllers:
        cluster.watch.check_kept(master.process.store.log)
    stored = read_all(master)
    if cluster.settings.waits_for_replicas:
        check_acknowledged(clients.sent, stored)
        check_order(clients.sent, stored)
    check_once(clients.sent, stored)
    for stream in cluster.streams:
        check_stream(stream, master, cluster.settings.waits_for_replicas)
    check_nothing_unsent(clients.sent, {*stored.values(), *clients.received})
    if cluster.settings.waits_for_replicas:
        gone = set(clients.received) - set(stored.values())
        if gone:
            raise Broken(
                Checker.NOTHING_UNSENT, f"received, and not in the log that is left: {sorted(gone)[:3]}"
            )
    return master


def check_nothing_unsent(sent: list[Sent], seen: set[bytes]) -> None:
    """No broker or consumer has a message that was never sent."""
    unsent = seen - {each.body for each in sent}
    if unsent:
        raise Broken(Checker.NOTHING_UNSENT, f"stored or received, but never sent: {sorted(unsent)[:3]}")


def check_committed(cluster: Cluster, master: Node) -> None:
    """No group has committed an offset beyond a message that it has not handled."""
    handled = set(cluster.clients.arrivals)
    for queue_id in range(QUEUES):
        committed = master.process.offsets.query(GROUP, TOPIC, queue_id) or 0
        for offset in range(master.process.store.min_offset(TOPIC, queue_id), committed):
            if (queue_id, offset) not in handled:
                raise Broken(
                    Checker.OFFSETS,
                    f"{GROUP} committed {committed} in queue {queue_id}, and never handled the message at {offset}",
                )


def read_all(node: Node) -> dict[tuple[int, int], bytes]:
    """(queue, offset) -> body, for each message of the topic at this broker."""
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


def _all_as_long(cluster: Cluster) -> bool:
    nodes = cluster.brokers
    return (
        all(node.process is not None for node in nodes)
        and len({node.process.store.log.end for node in nodes}) == 1
    )


def _all_equal(cluster: Cluster) -> bool:
    """Whether all logs are equal byte for byte, from the highest begin on: a broker with a full disk has
    deleted its oldest files.
    """
    if not _all_as_long(cluster):
        return False
    start = max(node.process.store.log.min_offset for node in cluster.brokers)
    return len({_log(node, start) for node in cluster.brokers}) == 1


def _log(node: Node, start: int) -> bytes:
    log = node.process.store.log
    content = b""
    at = start
    while at < log.end:
        segment = log.segment_at(at)
        end = min(segment.end, log.end)
        content += log.read(at, end - at)
        at = end
    return content
