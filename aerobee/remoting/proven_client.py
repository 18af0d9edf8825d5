"""Adds proofs to a client's requests (request_proof.py), if the server accepts proofs."""

from __future__ import annotations

from aerobee.errors import MalformedFrame
from aerobee.remoting.client import RemotingClient
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.request_proof import CHALLENGE_BYTES, CHALLENGE_FIELD, RequestProofs


async def prove(client: RemotingClient, address: str, timeout_s: float) -> None:
    """Add proofs to the requests on the connection to `address` from now on, if client and server support them.

    RocketMQ's servers do not support proofs: requests to them stay signed. Raises the errors of a call.
    """
    credentials = client.credentials
    if credentials is None:
        return
    connection = await client.connect(address, timeout_s)
    if connection.proofs_are_known:
        return
    answer = await connection.invoke(RemotingCommand(RequestCode.AEROBEE_CHALLENGE), timeout_s=timeout_s)
    if connection.proofs_are_known:  # another task has requested the challenge meanwhile
        return
    connection.proofs_are_known = True
    if answer.code == ResponseCode.SUCCESS:
        connection.proofs = RequestProofs(credentials, _challenge_in(answer))


def _challenge_in(answer: RemotingCommand) -> bytes:
    text = answer.text(CHALLENGE_FIELD, "")
    try:
        challenge = bytes.fromhex(text)
    except ValueError:
        challenge = b""
    if len(challenge) != CHALLENGE_BYTES:
        raise MalformedFrame(f"a challenge is {text[:80]!r}, expected {CHALLENGE_BYTES} bytes in hexadecimal")
    return challenge
