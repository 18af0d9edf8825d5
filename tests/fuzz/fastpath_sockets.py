"""Native sockets in the differential fuzz: what one burst brings comes here in pieces, over turns and runs of `Sockets.run`.

How long a run lingers, and how many turns it takes, are settings that change. Whatever they are, the replies, the bytes
of the log and what is noted are those of the burst that came whole.
"""

from __future__ import annotations

import collections
import random
import socket
from pathlib import Path
from typing import Any

from aerobee.broker.fastpath.choice import NATIVE
from aerobee.broker.fastpath.seam import LeveledReplies
from tests.fuzz.fastpath_counterparts import Counterpart, leveled_of
from tests.fuzz.fastpath_guarded import AccessWorld

PIECE_BYTES_MAX = 100_000  # what a socket takes in one write
TICKS_MAX = 7  # bytes of a frame's beginning, which are kept: each makes a turn and nothing else
DATA = 0  # kind of an event: bytes that the transport has to serve
LINGERS_S = (-1.0, -1.0, 0.0, 0.0002, 0.002)
TURN_COUNTS = (1, 2, 1 << 30)


class SocketCounterpart(Counterpart):
    """The parts around a native backend that is given bytes by native sockets."""

    def __init__(
        self,
        path: Path,
        rng: random.Random,
        *,
        access: AccessWorld | None = None,
        **store_settings: Any,
    ) -> None:
        import aerobee_native

        super().__init__(path, NATIVE, access=access, **store_settings)
        self.rng = rng
        self.sockets = aerobee_native.Sockets()
        self.linger_s, self.turn_count_max = -1.0, 1 << 30
        self.run_count = self.lingered_count = 0

    def change(self) -> None:
        """Continue with another way to end a run."""
        self.linger_s, self.turn_count_max = self.rng.choice(LINGERS_S), self.rng.choice(TURN_COUNTS)

    def serve(
        self, data: bytes, born_host: bytes, gates: tuple[bool, bool], host: str | None = None
    ) -> dict[str, Any]:
        """Serve whole frames through sockets; returns what is to be compared."""
        return _Exchange(self, _cut(data, self.rng), born_host, gates, host).run()


class _Exchange:
    """The pieces of one burst on their way. Event loop iterations serve two connections alternately: one brings the pieces, another one single bytes."""

    def __init__(
        self,
        counterpart: SocketCounterpart,
        pieces: list[bytes],
        born_host: bytes,
        gates: tuple[bool, bool],
        host: str | None,
    ) -> None:
        self._counterpart = counterpart
        self._host = host
        self._pieces = collections.deque(pieces)
        self._gates = gates
        self._ready: list[int] = []
        self._peer, self._token = self._connect(born_host)
        self._ticker, self._ticker_token = self._connect(born_host)
        self._is_tick = False  # what the next turn begins with
        self._replies = bytearray()
        self._rest = b""
        self._held = b""
        self._leveled: list[LeveledReplies] = []
        self._stored_count = 0
        self._deferred_answers: collections.Counter[int] = collections.Counter()
        counterpart._answered()

    def _connect(self, born_host: bytes) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        token = self._counterpart.sockets.add(ours.detach(), self)
        self._counterpart.sockets.serve(token, self._counterpart.connection, born_host, self._host)
        return theirs, token

    def run(self) -> dict[str, Any]:
        counterpart = self._counterpart
        self._peer.sendall(self._pieces.popleft())
        try:
            while not self._ready:
                self._turns()
        finally:
            for token in (self._token, self._ticker_token):
                counterpart.sockets.remove(token)
            self._peer.close()
            self._ticker.close()
        start, counterpart.seen_end = counterpart.seen_end, counterpart.store.log.end
        stored, handed_out = counterpart.take_totals()
        return {
            "replies": bytes(self._replies),
            "rest": self._rest,
            "held": self._held,
            "stored": stored,
            "handed out": handed_out,
            "stored count": self._stored_count,
            "end": counterpart.seen_end,
            "written": b"" if start == counterpart.seen_end else counterpart.appended(start),
            "answered": counterpart._answered(),
            "deferred answers": sorted(self._deferred_answers.items()),
            "leveled": leveled_of(self._leveled),
            "dedup keys": counterpart.dedup_keys(),
        }

    def _next_turn(self) -> int:
        """The time; asked at each turn's beginning, when it is known which connections it reads."""
        if self._is_tick:
            self._peer.sendall(self._pieces.popleft())
        elif self._pieces:
            self._ticker.sendall(b"\0")
        else:
            self._ready.append(1)  # this turn reads the last piece, and Python has something to do behind it
        self._is_tick = not self._is_tick
        return self._counterpart.clock.now_ms()

    def _turns(self) -> None:
        counterpart = self._counterpart
        turns = counterpart.sockets.run(
            counterpart.fast_path._direct_backend,  # type: ignore[arg-type]
            60.0,
            turn_count_max=counterpart.turn_count_max,
            takes_sends=self._gates[0],
            takes_pulls=self._gates[1],
            now_ms=self._next_turn,
            loop_ready=self._ready,
            loop_timers=None,
            linger_s=counterpart.linger_s,
        )
        assert turns.fault is None, turns.fault
        counterpart.run_count += 1
        counterpart.lingered_count += bool(self._pieces)
        if turns.stored_count:
            counterpart.store.burst_done()
            self._stored_count += turns.stored_count
        for connection, results in turns.pulled:
            counterpart.fast_path._note(results, connection)
        for _, frames, answers, level in turns.held:
            if level is None:
                self._held += frames
                self._deferred_answers.update(dict(answers))
            else:
                self._leveled.append((level, frames, answers))
        for _, kind, what in turns.events:
            assert kind == DATA, what
            self._rest += what
        counterpart.run_soon()
        while True:
            try:
                self._replies += self._peer.recv(1 << 20)
            except BlockingIOError:
                break
        for _, what in turns.unsent:
            assert isinstance(what, bytes), what
            self._replies += what


def _cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Cut bytes anywhere."""
    cuts = (
        {rng.randrange(1, len(data)) for _ in range(rng.choice((0, 0, 1, 2, 4)))} if len(data) > 1 else set()
    )
    for start in range(PIECE_BYTES_MAX, len(data), PIECE_BYTES_MAX):
        cuts.add(start)
    ends = [*sorted(cuts), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
