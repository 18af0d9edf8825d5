"""Requests protected against replay, between Aerobee's servers and tools that share a key. No I/O.

RocketMQ's signature (signature.py) covers the values of fields and the body: a recorded request can be replayed, even with another code.
A proof covers the whole request and is valid for one connection and one position in it:

    AEROBEE_CHALLENGE   the server answers with `challenge`, random and its own for each connection
    AerobeeNumber       1, 2, … in the order in which the requests are written
    AerobeeProof        Base64 of HMAC-SHA256(secret key, TITLE | challenge | number 8 | code 4 | field count 4 | fields | body)
    field               size 4 | name | size 4 | value; of every extension field but the proof, in the order of their names

All big-endian. No clock is involved. A request with a proof has no signature of RocketMQ's, so without its proof it is worth nothing.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Mapping

from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import ACCESS_KEY, SIGNATURE, Credentials

NUMBER, PROOF = "AerobeeNumber", "AerobeeProof"
CHALLENGE_FIELD = "challenge"
CHALLENGE_BYTES = 16
NUMBER_MAX = (1 << 63) - 1
TITLE = b"aerobee-request-1\0"
_HEAD = struct.Struct(">QiI")
_SIZE = struct.Struct(">I")


def proof_of(
    secret_key: str, challenge: bytes, number: int, code: int, ext: Mapping[str, str], body: bytes
) -> str:
    """The proof of a request with these fields; an existing proof field is ignored."""
    import hmac  # imported here: it loads OpenSSL's hashes, needed only with keys

    names = sorted(name for name in ext if name != PROOF)
    digest = hmac.new(secret_key.encode(), TITLE + challenge, "sha256")
    digest.update(_HEAD.pack(number, code, len(names)))
    for name in names:
        for text in (name, ext[name]):
            data = text.encode("utf-8", "surrogatepass")
            digest.update(_SIZE.pack(len(data)) + data)
    digest.update(body)
    return binascii.b2a_base64(digest.digest(), newline=False).decode("ascii")


class RequestProofs:
    """The client side: proofs for one connection, in the order in which its requests are written."""

    def __init__(self, credentials: Credentials, challenge: bytes) -> None:
        self._credentials = credentials
        self._challenge = challenge
        self._number = 0

    def sign(self, request: RemotingCommand) -> None:
        """Add number and proof to the next request that is written."""
        self._number += 1
        ext = {name: text for name, text in (request.ext or {}).items() if name not in (SIGNATURE, PROOF)}
        ext[ACCESS_KEY], ext[NUMBER] = self._credentials.access_key, str(self._number)
        ext[PROOF] = proof_of(
            self._credentials.secret_key, self._challenge, self._number, request.code, ext, request.body
        )
        request.ext = ext


class ProofCheck:
    """The server side of one connection. Each number is valid once, and numbers must increase."""

    def __init__(self, challenge: bytes) -> None:
        """`challenge`: CHALLENGE_BYTES of unpredictable bytes, used for one connection."""
        self.challenge = challenge
        self._last = 0

    def takes(self, request: RemotingCommand, credentials: Credentials) -> bool:
        """Whether the request was proven with this key, for this connection, and is new."""
        import hmac

        ext = request.ext or {}
        text, given = ext.get(NUMBER, ""), ext.get(PROOF, "")
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX))):
            return False
        number = int(text)
        if not self._last < number <= NUMBER_MAX or ext.get(ACCESS_KEY) != credentials.access_key:
            return False
        expected = proof_of(credentials.secret_key, self.challenge, number, request.code, ext, request.body)
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode("ascii")):
            return False
        self._last = number
        return True
