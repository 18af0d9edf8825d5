"""gRPC as families of /metrics: connections, calls by RPC and status, bytes, refusals by bound."""

from __future__ import annotations

from collections.abc import Iterator

from aerobee.broker.metrics.grpc_traffic import GrpcTraffic
from aerobee.monitoring.exposition import COUNTER, GAUGE, Family, joined, label_text


def grpc_families(traffic: GrpcTraffic, common: str) -> Iterator[Family]:
    """Families of all gRPC connections of a broker; of calls and refusals only those that occurred."""
    for name, meaning, value in (
        ("aerobee_grpc_connections", "Open connections", traffic.connection_count),
        ("aerobee_grpc_calls", "Open calls, Telemetry and long polls included", traffic.call_count),
    ):
        yield Family(name, GAUGE, meaning, ((common, value),))
    for name, meaning, value in (
        ("aerobee_grpc_received_bytes_total", "Bytes received, without TLS", traffic.received_bytes),
        ("aerobee_grpc_sent_bytes_total", "Bytes sent, without TLS", traffic.sent_bytes),
    ):
        yield Family(name, COUNTER, meaning, ((common, value),))
    calls = (
        (joined(common, label_text({"rpc": rpc, "status": status})), count)
        for (rpc, status), count in sorted(traffic.calls.items())
    )
    yield Family("aerobee_grpc_calls_total", COUNTER, "Ended calls", calls)
    refused = (
        (joined(common, label_text({"bound": bound})), count)
        for bound, count in sorted(traffic.refused.items())
    )
    meaning = "Calls ended, and connections closed, because of a bound"
    yield Family("aerobee_grpc_refused_total", COUNTER, meaning, refused)
