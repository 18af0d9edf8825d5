"""Findings of `aerobee doctor` about gRPC ports, of brokers and proxies: whether they answer, and which clients are refused there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from aerobee.host_port import join_address, split_address
from aerobee.ops.diagnosis.finding import Finding

PROBE_TIMEOUT_S = 3.0
# HTTP/2's connection preface and an empty SETTINGS frame, which every server answers with its own SETTINGS.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_SETTINGS_TYPE = 4
_REMEDIES = {
    "grpcCallsMax": "raise grpcCallsMax, or find the client that opens the most calls",
    "grpcRequestBytesMax": "raise grpcRequestBytesMax, or let producers send smaller batches",
    "connection": "clients break HTTP/2, or leave frames unfinished: the broker's log names their addresses",
}
_FLOOD = "clients flood their connections: the broker's log names their addresses"


async def examine_grpc(
    part: str, address: str, runtime: Mapping[str, str], config: Mapping[str, str]
) -> list[Finding]:
    """Findings about one broker, at the host of its advertised address; none for a broker without a gRPC port."""
    wanted = config.get("grpcServerPort", "0")
    port = runtime.get("grpcPort", "")
    if "grpcPort" not in runtime or wanted in ("", "0"):
        return refusal_findings(part, runtime)
    if port == "0":
        return [
            Finding(
                part=part,
                check="gRPC port",
                level="fail",
                detail=f"grpcServerPort {wanted} is not served: the package protobuf is not installed",
                advice="pip install 'aerobee[grpc]' at the broker, and restart it",
            )
        ]
    grpc_address = join_address(split_address(address)[0], int(port))
    milliseconds, problem = await probe(grpc_address)
    if problem:
        finding = Finding(
            part=part,
            check="gRPC port",
            level="fail",
            detail=f"{grpc_address}: {problem}",
            advice="RocketMQ 5's clients connect to this port: open it in firewalls, Services and NetworkPolicies",
        )
    else:
        clients = (
            f"{runtime.get('grpcConnections', '0')} connections, {runtime.get('grpcCalls', '0')} open calls"
        )
        detail = f"{grpc_address} answers in {milliseconds:.1f} ms; {clients}"
        finding = Finding(part=part, check="gRPC port", level="ok", detail=detail)
    return [finding, *refusal_findings(part, runtime)]


async def examine_proxies(addresses: Sequence[str]) -> list[Finding]:
    """One finding for each address of a proxy. Raises UsageError for an address that is none."""
    for address in addresses:
        split_address(address)
    findings = []
    for address, (milliseconds, problem) in zip(
        addresses, await asyncio.gather(*map(probe, addresses)), strict=True
    ):
        detail = f"{address}: {problem}" if problem else f"{address} answers in {milliseconds:.1f} ms"
        advice = "start `aerobee proxy`, or open its port in firewalls, Services and NetworkPolicies"
        finding = Finding(
            part=f"proxy {address}",
            check="gRPC port",
            level="fail" if problem else "ok",
            detail=detail,
            advice=advice if problem else "",
        )
        findings.append(finding)
    return findings


def refusal_findings(part: str, runtime: Mapping[str, str]) -> list[Finding]:
    """One warning for each bound at which gRPC clients were refused since the broker's start. No I/O."""
    findings = []
    for piece in runtime.get("grpcRefused", "").split():
        bound, _, count = piece.partition("=")
        findings.append(
            Finding(
                part=part,
                check="gRPC clients",
                level="warn",
                detail=f"{count} refusals since the start: {bound}",
                advice=_REMEDIES.get(bound, _FLOOD),
            )
        )
    return findings


async def probe(address: str) -> tuple[float, str]:
    """(milliseconds until the port answered as HTTP/2, what is wrong or ""). A port that takes TLS only counts as open."""
    host, port = split_address(address)
    began = time.perf_counter()
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(_PREFACE)
            answer = await reader.read(9)
    except TimeoutError:
        return PROBE_TIMEOUT_S * 1000, f"no answer within {PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return 0.0, str(error.strerror or error)
    finally:
        if writer is not None:
            writer.close()
    if answer and (len(answer) < 4 or answer[3] != _SETTINGS_TYPE):
        return 0.0, "the port answers, but not as HTTP/2"
    return (time.perf_counter() - began) * 1000, ""
