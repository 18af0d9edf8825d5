"""Mutual authentication of two brokers by a shared key, before the first byte of the log. Core.

    slave  -> master   8 bytes MAGIC | 16 bytes random
    master -> slave    16 bytes random | 32 bytes HMAC-SHA256(key, "master" | both randoms)
    slave  -> master   32 bytes HMAC-SHA256(key, "slave" | both randoms)

Then the replication protocol begins, unchanged. Each side's proof is valid only for these two random numbers,
so a recorded proof cannot be reused. The exchange does not encrypt the log.
"""

from __future__ import annotations

import hashlib
import hmac

from aerobee.errors import MalformedFrame

MAGIC = b"AEROKEY1"
RANDOM_BYTES = 16
PROOF_BYTES = 32


def proof(key: bytes, side: bytes, of_slave: bytes, of_master: bytes) -> bytes:
    """The proof of `side` ("slave" or "master")."""
    return hmac.new(key, side + of_slave + of_master, hashlib.sha256).digest()


class KeyExchange:
    """One side of the exchange. feed() returns the bytes to send; `rest` has the bytes behind the exchange once
    `is_done`."""

    def __init__(self, key: bytes, random: bytes, *, is_master: bool) -> None:
        """`random`: RANDOM_BYTES unguessable bytes, used once."""
        self.is_done = False
        self.rest = b""
        self._key = key
        self._own = random
        self._other = b""
        self._is_master = is_master
        self._pending = bytearray()

    def begin(self) -> bytes:
        """The first bytes of a slave; a master sends none before the slave's."""
        return b"" if self._is_master else MAGIC + self._own

    def feed(self, data: bytes) -> bytes:
        """Raises MalformedFrame when the other side has another key or none; then the connection is closed."""
        self._pending += data
        return self._as_master() if self._is_master else self._as_slave()

    def _as_master(self) -> bytes:
        answer = b""
        if not self._other:
            head = self._take(len(MAGIC) + RANDOM_BYTES, MAGIC)
            if head is None:
                return b""
            self._other = head[len(MAGIC) :]
            answer = self._own + proof(self._key, b"master", self._other, self._own)
        shown = self._take(PROOF_BYTES)
        if shown is not None:
            self._check(shown, proof(self._key, b"slave", self._other, self._own))
        return answer

    def _as_slave(self) -> bytes:
        answer = self._take(RANDOM_BYTES + PROOF_BYTES)
        if answer is None:
            return b""
        self._other = answer[:RANDOM_BYTES]
        self._check(answer[RANDOM_BYTES:], proof(self._key, b"master", self._own, self._other))
        return proof(self._key, b"slave", self._own, self._other)

    def _take(self, size: int, begins_with: bytes = b"") -> bytes | None:
        pending = self._pending
        if pending and begins_with and bytes(pending[: len(begins_with)]) != begins_with[: len(pending)]:
            raise MalformedFrame(
                "it shows no key and haSharedKey is set here: set the same at both (RocketMQ's brokers have none)"
            )
        if len(pending) < size:
            return None
        taken = bytes(pending[:size])
        del pending[:size]
        return taken

    def _check(self, shown: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(shown, expected):
            raise MalformedFrame("its haSharedKey is another one than this broker's")
        self.is_done = True
        self.rest = bytes(self._pending)
        self._pending.clear()
