"""SIGTERM and SIGINT while 64 connections send: the broker stops immediately and cleanly, and has what it acknowledged.

    python tests/survival/stop_under_load.py [--in-flight 16] [--python]

Every connection keeps sends outstanding until the broker refuses or is gone. Then the log's files are searched for the key
of each acknowledged message, and the broker is started again: it has to call the stop a clean one and to count as many
messages. Ends with status 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "bench"), str(Path(__file__).resolve().parent)]

import servers  # noqa: E402
from wire_load import WirePeer, connect, send_request  # noqa: E402

CONNECTIONS = 64
SEND_S = 1.0
FIRST_MAX_S = 120.0
STOP_MAX_S = 30.0  # far above what is promised: other work on the machine is no fault
TOPIC = "stop"
KEY_OF_ALL = b"7F00000100000000000000000000000A"
KEY = re.compile(rb"UNIQ_KEY\x01([0-9A-F]{32})\x02")
OPAQUE = re.compile(rb'"opaque":(\d+)')
CLEAN = "opened after a clean stop"


class Fault(Exception):
    """A promise was broken."""


class NumberedSenders:
    """Connections that keep `in_flight` sends outstanding, each with a separate key, until one is refused."""

    def __init__(self, in_flight: int) -> None:
        self.acknowledged: set[bytes] = set()
        self.codes: collections.Counter[int] = collections.Counter()
        self._in_flight = in_flight
        self._frame = send_request(TOPIC, b"x" * 128)
        self._last = 100_000_000  # of a fixed length, so that frames are made by putting it in
        self._peers: list[WirePeer] = []

    async def start(self, port: int) -> None:
        self._peers = await connect(port, self._answered, at_once=CONNECTIONS)
        for peer in self._peers:
            for _ in range(self._in_flight):
                peer.send(self._next())

    async def wait_gone(self) -> None:
        """Return when the broker has closed every connection."""
        while not all(peer.is_lost for peer in self._peers):  # noqa: ASYNC110  another process is waited for
            await asyncio.sleep(0.01)

    def _next(self) -> bytes:
        self._last += 1
        frame = self._frame.replace(KEY_OF_ALL, b"%032X" % self._last)
        frame = frame.replace(b'"opaque": 1,', b'"opaque": %d,' % self._last)
        # Eight digits more than the template has.
        length, header = (int.from_bytes(frame[at : at + 4]) + 8 for at in (0, 4))
        return length.to_bytes(4) + header.to_bytes(4) + frame[8:]

    def _answered(self, peer: WirePeer, code: int, frame: bytes) -> None:
        self.codes[code] += 1
        if code == 0:
            found = OPAQUE.search(frame)
            assert found is not None
            self.acknowledged.add(b"%032X" % int(found[1]))
            if peer.transport is not None and not peer.transport.is_closing():
                peer.send(self._next())


def stored_keys(log_directory: Path) -> collections.Counter[bytes]:
    """The key of each message in the log's files, and how often it stands there."""
    found: collections.Counter[bytes] = collections.Counter()
    for path in sorted(log_directory.iterdir()):
        found.update(KEY.findall(path.read_bytes()))
    return found


async def send_and_stop(
    server: servers.Server, number: signal.Signals, in_flight: int
) -> tuple[NumberedSenders, float]:
    """Returns the senders and when the signal was sent."""
    senders = NumberedSenders(in_flight)
    await senders.start(server.port)
    await asyncio.sleep(SEND_S)
    async with asyncio.timeout(FIRST_MAX_S):
        while not senders.acknowledged:  # noqa: ASYNC110  a disk that others keep busy takes seconds for the first
            await asyncio.sleep(0.01)
    stopped_at = time.monotonic()
    server.processes[-1].send_signal(number)
    async with asyncio.timeout(STOP_MAX_S):
        await senders.wait_gone()
    return senders, stopped_at


def run(
    number: signal.Signals,
    *,
    sync_flush: bool,
    in_flight: int = 16,
    environment: Mapping[str, str] | None = None,
) -> dict[str, float]:
    """Stop a broker by this signal while it is sent to. Raises Fault."""
    small = {"mappedFileSizeCommitLog": str(8 << 20), "mappedFileSizeConsumeQueue": str(20 * 5_000)}
    with servers.aerobee(sync_flush=sync_flush, extra=small, environment=environment) as server:
        senders, stopped_at = asyncio.run(send_and_stop(server, number, in_flight))
        status = server.processes[-1].wait(STOP_MAX_S)
        stop_s = time.monotonic() - stopped_at
        log = (server.directory / "broker.log").read_text(errors="replace")
        if "Traceback" in log or status not in (0, -number):
            raise Fault(f"the broker ended with status {status}: {log[-2000:]}")
        found = stored_keys(server.directory / "store" / "commitlog")
        lost = senders.acknowledged - found.keys()
        twice = [key for key, count in found.items() if count > 1]
        if not senders.acknowledged or lost or twice:
            raise Fault(
                f"{len(senders.acknowledged)} acknowledged, {len(lost)} lost, {len(twice)} stored twice"
            )
        server.restart("broker.log", kill=True)
        log = (server.directory / "broker.log").read_text(errors="replace")
        if log.count(CLEAN) != 2:
            raise Fault(f"the start does not say {CLEAN!r}: {log[-2000:]}")
    return {
        "stop_s": round(stop_s, 2),
        "acknowledged": len(senders.acknowledged),
        "stored": len(found),
        "refused": senders.codes.total() - senders.codes[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--python", action="store_true", help="the fast path in Python")
    options = parser.parse_args()
    environment = {"AEROBEE_FAST_PATH": "python"} if options.python else None
    try:
        for sync_flush in (False, True):
            for number in (signal.SIGTERM, signal.SIGINT):
                figures = run(
                    number, sync_flush=sync_flush, in_flight=options.in_flight, environment=environment
                )
                print(number.name, "sync" if sync_flush else "async", figures, flush=True)
    except (Fault, servers.ServerFailed, TimeoutError) as fault:
        print(f"FAULT: {fault!r}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
