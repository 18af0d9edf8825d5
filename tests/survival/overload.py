"""More senders than a broker can serve: refusals say why, answers stay fast, nothing grows, all is well afterwards.

    python tests/survival/overload.py [--seconds 10] [--connections 1000] [--in-flight 64] [--processes 2]
        [--server aerobee-python]

Measures the rate of a few senders, then lets very many send simultaneously while one well-behaved producer sends a message at a
time and one consumer reads by long poll, then measures the few again. Ends with status 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench"), str(Path(__file__).resolve().parent)]

import servers  # noqa: E402
from process_figures import look_at  # noqa: E402
from wire_load import WirePeer, connect, pull_request, send_elsewhere, send_request  # noqa: E402

FEW_CONNECTIONS, FEW_IN_FLIGHT = 4, 64
BODY_BYTES = 128
ANSWER_MAX_S = 5.0  # a request that waits longer than a client's patience is as good as lost
MEMORY_GROWTH_MAX_BYTES = 200 << 20
RATE_SHARE_MIN = 0.5  # afterwards, of the rate before: on a machine that does other work, too


class Fault(Exception):
    """A promise was broken."""


class Probe:
    """One producer with one message in flight: what a well-behaved client sees."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self._at = 0.0
        self._frame = send_request("probe", b"x" * BODY_BYTES)
        self._peer: WirePeer | None = None

    async def start(self, port: int) -> None:
        (self._peer,) = await connect(port, self._answered)
        self._send()

    def _send(self) -> None:
        assert self._peer is not None
        self._at = time.monotonic()
        self._peer.send(self._frame)

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        self.waits_s.append(time.monotonic() - self._at)
        asyncio.get_running_loop().call_later(0.01, self._send)

    def longest_s(self) -> float:
        return max([*self.waits_s, time.monotonic() - self._at])


class Reader:
    """One consumer of the loaded queue, by pulls that may be parked."""

    def __init__(self, topic: str) -> None:
        self.answers = 0
        self.bytes = 0
        self._topic = topic
        self._offset = 0

    async def start(self, port: int) -> None:
        (peer,) = await connect(port, self._answered)
        self._pull(peer)

    def _pull(self, peer: WirePeer) -> None:
        peer.send(pull_request(self._topic, 0, self._offset, hold_s=5.0))

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        size = int.from_bytes(frame[5:8], "big")
        ext = json.loads(frame[8 : 8 + size]).get("extFields") or {}
        self._offset = int(ext.get("nextBeginOffset", self._offset))
        if code == 0:
            self.answers += 1
            self.bytes += len(frame)
        self._pull(peer)


async def measure(port: int, topic: str, seconds: float) -> float:
    report = await send_elsewhere(
        port,
        topic,
        connections=FEW_CONNECTIONS,
        in_flight=FEW_IN_FLIGHT,
        body_bytes=BODY_BYTES,
        seconds=seconds,
    )
    return report.rate


async def run(
    server: servers.Server, *, seconds: float, connections: int, in_flight: int, processes: int = 1
) -> dict[str, Any]:
    """Before, overload, afterwards. Raises Fault; returns figures."""
    pid = server.pids[-1]
    await measure(server.port, "warm-up", min(3.0, seconds))
    before = await measure(server.port, "before", seconds)
    # The topic is there before: sends to one that is being made wait for its file, all of them.
    await measure(server.port, "overload", 0.2)
    memory = look_at(pid).anonymous_bytes
    probe, reader = Probe(), Reader("overload")
    await probe.start(server.port)
    await reader.start(server.port)
    sending = asyncio.gather(
        *(
            send_elsewhere(
                server.port,
                "overload",
                connections=connections // processes,
                in_flight=in_flight,
                body_bytes=BODY_BYTES,
                seconds=seconds,
            )
            for _ in range(processes)
        )
    )
    peak = memory
    counts = [0]
    while not sending.done():
        await asyncio.wait([sending], timeout=seconds / 20)
        peak = max(peak, look_at(pid).anonymous_bytes)
        counts.append(reader.answers)
    read_in_second_half = counts[-1] - counts[len(counts) // 2]
    reports = sending.result()
    codes: collections.Counter[int] = collections.Counter()
    for report in reports:
        codes.update(report.codes)
    refusal = next((report.refusal for report in reports if report.refusal), b"")
    longest_s = probe.longest_s()
    await asyncio.sleep(1.0)
    after = await measure(server.port, "after", seconds)
    figures = {
        "connections": connections,
        "in_flight": connections * in_flight,
        "server": server.name,
        "rate_before": round(before),
        "rate_after": round(after),
        "replies_by_code": {str(code): count for code, count in sorted(codes.items())},
        "refusal": _remark(refusal),
        "longest_answer_ms": round(longest_s * 1000),
        "probe_answers": len(probe.waits_s),
        "probe_p50_ms": _percentile_ms(probe.waits_s, 0.5),
        "probe_p99_ms": _percentile_ms(probe.waits_s, 0.99),
        "pulls_answered": reader.answers,
        "pulls_answered_in_second_half": read_in_second_half,
        "memory_growth_mib": round((peak - memory) / 2**20, 1),
    }
    if set(codes) - {0, 2}:
        raise Fault(f"other codes than 0 and 2: {figures}")
    if refusal and not ("ms" in _remark(refusal) or "bytes" in _remark(refusal)):
        raise Fault(f"a refusal without its measure: {figures}")
    if not reader.answers:
        raise Fault(f"the consumer got nothing: {figures}")
    if peak - memory > MEMORY_GROWTH_MAX_BYTES:
        raise Fault(f"memory grew: {figures}")
    return figures


def judge_speed(figures: dict[str, Any]) -> None:
    """What a machine that does other work, too, may break. Raises Fault."""
    if figures["longest_answer_ms"] > ANSWER_MAX_S * 1000:
        raise Fault(f"an answer took longer than {ANSWER_MAX_S} s: {figures}")
    if not figures["pulls_answered_in_second_half"]:
        raise Fault(f"the consumer got nothing in the second half: {figures}")
    if figures["rate_after"] < figures["rate_before"] * RATE_SHARE_MIN:
        raise Fault(f"slower afterwards: {figures}")


def _percentile_ms(waits_s: list[float], share: float) -> float | None:
    ordered = sorted(waits_s)
    return round(ordered[int(len(ordered) * share)] * 1000, 2) if ordered else None


def _remark(frame: bytes) -> str:
    size = int.from_bytes(frame[5:8], "big")
    return str(json.loads(frame[8 : 8 + size]).get("remark", "")) if frame else ""


def run_all(
    *, seconds: float, connections: int, in_flight: int, processes: int = 1, server_name: str = "aerobee"
) -> dict[str, Any]:
    """Raises Fault."""
    with getattr(servers, server_name.replace("-", "_"))() as server:
        return asyncio.run(
            run(server, seconds=seconds, connections=connections, in_flight=in_flight, processes=processes)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2, help="that send; the connections are shared out")
    parser.add_argument("--server", default="aerobee", choices=("aerobee", "aerobee-python"))
    options = parser.parse_args()
    try:
        figures = run_all(
            seconds=options.seconds,
            connections=options.connections,
            in_flight=options.in_flight,
            processes=options.processes,
            server_name=options.server,
        )
        judge_speed(figures)
        print(json.dumps(figures, indent=1))
    except (Fault, servers.ServerFailed) as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
