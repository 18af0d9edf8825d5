"""Peers that hold a connection and do not keep to the conversation: others are served, memory is bounded, they are closed.

    python tests/survival/slow_peers.py [--peers 500] [--idle-seconds 8] [--kinds silent,half,huge,unresponsive] [--server aerobee]

A broker, a separate process, gets `--peers` connections of each kind together:

- silent: connects and never says a word; so looks a peer whose machine lost its power, too;
- half: sends the first half of a small request and stops;
- huge: announces a frame of 15 MiB, sends 64 KiB of it and stops;
- unresponsive: asks for as much as it can, and never reads an answer. Beyond half of pendingReplyBytesMax such peers are closed sooner.

A producer that behaves sends one message after the other all the while. What must hold: each of its messages is stored;
an unresponsive peer is not read from once its answers pile up (its own sends block); the broker's memory stays under what the
connections may cost; and all are closed, no earlier than serverChannelMaxIdleTimeSeconds and not much later, with
memory and handles given back. Ends with status 1 when one does not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench"), str(Path(__file__).resolve().parent)]

import servers  # noqa: E402
from process_figures import look_at  # noqa: E402
from wire_load import WirePeer, connect, pull_request, send_request  # noqa: E402

KINDS = ("silent", "half", "huge", "unresponsive")
TOPIC = "slow"
STORED_COUNT, STORED_BYTES = 64, 64 * 1024  # what unresponsive peers ask for; a pull gets 256 KiB of it
HUGE_ANNOUNCED_BYTES, HUGE_SENT_BYTES = 15 << 20, 64 << 10
SOCKET_BUFFER_BYTES = 16 * 1024  # of our ends, so that blocking comes soon
UNRESPONSIVE_REQUEST_BYTES_MAX = 16 << 20  # of one peer; one that got rid of so many was not paused
UNRESPONSIVE_PUSH_BYTES = 64 * 1024
BETWEEN_PEERS_S = 0.005
BLOCKED_S = 1.0  # nothing taken for so long: paused
# What one connection of a kind may cost the broker, its share of buffers included. Deaf: write_high_bytes and the answers to
# one read of requests.
MEMORY_MAX_BYTES = {"silent": 16 << 10, "half": 24 << 10, "huge": 256 << 10, "unresponsive": 3 << 20}
# Afterwards. What the unresponsive cost stays with the allocator, as often as not, and the next ones cost nothing: run `unresponsive,unresponsive`.
MEMORY_KEPT_MAX_BYTES = 48 << 20
PENDING_BYTES_MAX = (
    256 << 20
)  # pendingReplyBytesMax, of all unresponsive peers together; checked every second, so more for a moment
GIVEN_BACK_S = 5.0
CLOSED_WITHIN_S = (
    60.0  # and ten times what they may idle: a busy machine closes them late, and that is no fault
)
PROBE_WAIT_MAX_S = 5.0  # or fifty times what it waits alone, where the machine does other work


class Fault(Exception):
    """A promise was broken."""


class Probe:
    """A producer with one message in flight, which repeats what is refused: what a well-behaved peer sees."""

    def __init__(self) -> None:
        self.stored = 0
        self.refused = 0
        self.refusal = b""
        self.waits_s: list[float] = []  # of each message, its repetitions included
        self._since = 0.0
        self._frame = send_request("probe", b"x" * 128)
        self._peer: WirePeer | None = None

    async def start(self, port: int) -> None:
        (self._peer,) = await connect(port, self._answered)
        self._begin()

    def stop(self) -> None:
        if self._peer is not None and self._peer.transport is not None:
            self._peer.transport.abort()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._send()

    def _send(self) -> None:
        assert self._peer is not None
        self._peer.send(self._frame)

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        loop = asyncio.get_running_loop()
        if code:
            self.refused += 1
            self.refusal = frame
            loop.call_later(0.05, self._send)
        else:
            self.stored += 1
            self.waits_s.append(time.monotonic() - self._since)
            loop.call_later(0.01, self._begin)

    def longest_s(self) -> float:
        return max(self.waits_s)


class SlowPeer:
    """One connection that misbehaves. Nothing is ever read from it."""

    def __init__(self, port: int, kind: str) -> None:
        self.kind = kind
        self.pushed = 0
        self.idle_for_s = -1.0  # how long it had said nothing when it was seen to be closed; -1: it is open
        self._said_at = time.monotonic()
        self._socket = socket.socket()
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self._socket.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)
        self._rest = b""

    def begin(self) -> None:
        """Send the first bytes immediately."""
        request = pull_request(TOPIC, 0, 0, hold_s=0.0)
        if self.kind == "half":
            self._rest = request[: len(request) // 2]
        elif self.kind == "huge":
            self._rest = struct.pack(">II", HUGE_ANNOUNCED_BYTES, 100) + b"x" * HUGE_SENT_BYTES
        elif self.kind == "unresponsive":
            self._rest = request * (UNRESPONSIVE_PUSH_BYTES // len(request))

    def push(self) -> bool:
        """Get rid of what the socket takes; returns whether it took something. An unresponsive peer always has more."""
        if not self._rest or self.pushed >= UNRESPONSIVE_REQUEST_BYTES_MAX:
            return False
        began = time.monotonic()
        try:
            count = self._socket.send(self._rest)
        except BlockingIOError:
            return False
        except OSError:
            self._rest = b""  # it was closed
            return False
        self.pushed += count
        self._said_at = began
        # The requests are all alike: going round keeps the stream whole.
        self._rest = self._rest[count:] + (self._rest[:count] if self.kind == "unresponsive" else b"")
        return True

    def look(self) -> bool:
        """Whether the broker has closed it. Seen late at a busy machine, so it never seems to have come too early."""
        if self.idle_for_s < 0:
            poll = select.poll()
            poll.register(self._socket, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            if poll.poll(0):
                self.idle_for_s = time.monotonic() - self._said_at
        return self.idle_for_s >= 0

    def close(self) -> None:
        self._socket.close()


async def fill(port: int) -> None:
    """Store what the unresponsive will ask for."""
    stored: asyncio.Queue[int] = asyncio.Queue()
    (peer,) = await connect(port, lambda _, code, frame: stored.put_nowait(code))
    for _ in range(STORED_COUNT):
        peer.send(send_request(TOPIC, b"x" * STORED_BYTES))
        if await stored.get():
            raise Fault("a message could not be stored before there was any slow peer")
    assert peer.transport is not None
    peer.transport.abort()


async def push_all(peers: list[SlowPeer]) -> None:
    """Let all peers get rid of what they have, until none could for BLOCKED_S."""
    moved_at = time.monotonic()
    while time.monotonic() - moved_at < BLOCKED_S:
        took = [peer.push() for peer in peers]
        for peer in peers:
            peer.look()
        if any(took):
            moved_at = time.monotonic()
        await asyncio.sleep(0.02)


async def run(server: servers.Server, kind: str, count: int, idle_s: float) -> dict[str, Any]:
    """One kind. Raises Fault; returns figures."""
    pid = server.pids[-1]
    probe = Probe()
    await probe.start(server.port)
    await asyncio.sleep(0.5)
    alone_s = max(probe.waits_s)
    before = look_at(pid)
    peers: list[SlowPeer] = []
    try:
        for _ in range(count):
            peers.append(SlowPeer(server.port, kind))
            peers[-1].begin()
            peers[-1].push()
            for peer in peers:
                peer.look()
            await asyncio.sleep(BETWEEN_PEERS_S)
        await push_all(peers)
        silent_since = time.monotonic()
        if kind == "unresponsive" and max(peer.pushed for peer in peers) >= UNRESPONSIVE_REQUEST_BYTES_MAX:
            raise Fault(
                f"an unresponsive peer got rid of {UNRESPONSIVE_REQUEST_BYTES_MAX} bytes of requests: it was not paused"
            )
        peak = look_at(pid)
        limit_s = 10 * idle_s + CLOSED_WITHIN_S
        while sum(peer.look() for peer in peers) < count or look_at(pid).handles > before.handles:
            now = look_at(pid)
            peak = max(peak, now, key=lambda each: each.anonymous_bytes)
            waited_s = time.monotonic() - silent_since
            if waited_s > limit_s:
                raise Fault(
                    f"{now.handles - before.handles} {kind} peers are not closed after {waited_s:.0f} s"
                )
            await asyncio.sleep(0.1)
        last_closed_s = time.monotonic() - silent_since
        first_closed_s = min(peer.idle_for_s for peer in peers)
        if kind != "unresponsive" and first_closed_s < idle_s:
            raise Fault(
                f"a {kind} peer was closed {first_closed_s:.1f} s after its last byte, before the {idle_s} s it may idle"
            )
    finally:
        for peer in peers:
            peer.close()
    given_back_until = time.monotonic() + GIVEN_BACK_S
    while look_at(pid).anonymous_bytes > before.anonymous_bytes + MEMORY_KEPT_MAX_BYTES:
        if time.monotonic() > given_back_until:
            break
        await asyncio.sleep(0.1)
    probe.stop()
    figures = {
        "kind": kind,
        "peers": count,
        "kib_a_peer": round((peak.anonymous_bytes - before.anonymous_bytes) / count / 1024, 1),
        "peak_mib": peak.anonymous_bytes >> 20,
        "before_mib": before.anonymous_bytes >> 20,
        "after_mib": look_at(pid).anonymous_bytes >> 20,
        "first_and_last_closed_s": [round(first_closed_s, 1), round(last_closed_s, 1)],
        "pushed_kib_a_peer": round(sum(peer.pushed for peer in peers) / count / 1024, 1),
        "probe_stored": probe.stored,
        "probe_refused": probe.refused,
        "last_refusal": probe.refusal[8:].decode(errors="replace").partition('"remark":"')[2][:200],
        "probe_alone_longest_ms": round(alone_s * 1000, 1),
        "probe_p50_ms": round(sorted(probe.waits_s)[len(probe.waits_s) // 2] * 1000, 2),
        "probe_longest_ms": round(probe.longest_s() * 1000, 1),
    }
    check(figures, probe)
    return figures


def check(figures: dict[str, Any], probe: Probe) -> None:
    """Raises Fault when a figure breaks a promise."""
    kind = figures["kind"]
    if probe.refused and kind != "unresponsive":
        raise Fault(f"a send was refused with {kind} peers connected\n{figures}")
    if figures["probe_longest_ms"] > max(PROBE_WAIT_MAX_S * 1000, 50 * figures["probe_alone_longest_ms"]):
        raise Fault(f"a send waited {figures['probe_longest_ms']} ms with {kind} peers connected\n{figures}")
    if figures["kib_a_peer"] * 1024 > MEMORY_MAX_BYTES[kind] + (8 << 20) / figures["peers"]:
        raise Fault(f"a {kind} peer costs {figures['kib_a_peer']} KiB\n{figures}")
    if (figures["peak_mib"] - figures["before_mib"]) << 20 > PENDING_BYTES_MAX * 5 // 2:
        raise Fault(f"{kind} peers cost far more than pendingReplyBytesMax\n{figures}")
    if (
        kind != "unresponsive"
        and (figures["after_mib"] - figures["before_mib"]) << 20 > MEMORY_KEPT_MAX_BYTES
    ):
        raise Fault(f"memory was not given back after {kind} peers\n{figures}")


def run_all(kinds: list[str], *, peers: int, idle_s: int, server_name: str) -> list[dict[str, Any]]:
    """All kinds, one after the other, at one broker. Raises Fault; returns figures of each."""
    start = {"aerobee": servers.aerobee, "aerobee-python": servers.aerobee_python}[server_name]
    found = []
    with start(extra={"serverChannelMaxIdleTimeSeconds": str(idle_s)}) as server:
        asyncio.run(fill(server.port))
        for kind in kinds:
            found.append(asyncio.run(run(server, kind, peers, idle_s)))
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        log = (server.directory / "broker.log").read_text(errors="replace")
    if "Traceback" in log or " ERROR " in log:
        raise Fault(f"the broker's log holds errors:\n{log[-3000:]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=500, help="of each kind")
    parser.add_argument("--idle-seconds", type=int, default=8)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--server", choices=("aerobee", "aerobee-python"), default="aerobee")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(unknown)} is none of {', '.join(KINDS)}")
    try:
        found = run_all(kinds, peers=options.peers, idle_s=options.idle_seconds, server_name=options.server)
    except Fault as fault:
        print(f"FAULT: {fault}", file=sys.stderr)
        sys.exit(1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
