"""Authentication of requests to a controller (authenticationEnabled) by the key in
innerClientAuthenticationCredentials.

Aerobee's brokers, controllers and commands prove each request (remoting/request_proof.py): an attacker can neither
replay it nor send it under another code. RocketMQ's brokers, and `mqadmin` with the same credentials in its tools.yml,
use RocketMQ's signature, which covers neither code nor time. The controller accepts that signature for RocketMQ's
request codes, unless authenticationProofRequired is set, and never for Aerobee-specific codes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from aerobee.errors import RemoteError
from aerobee.remoting.codes import RequestCode, ResponseCode, request_name
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Handler, Peer
from aerobee.remoting.request_proof import CHALLENGE_BYTES, CHALLENGE_FIELD, PROOF, ProofCheck
from aerobee.remoting.signature import ACCESS_KEY, Credentials, is_signed_with

AEROBEE_ONLY = frozenset(
    {
        RequestCode.AEROBEE_RAFT_MESSAGE,
        RequestCode.AEROBEE_QUORUM_STATUS,
        RequestCode.AEROBEE_CHANGE_QUORUM,
    }
)


class KeyedRequests:
    """Passes only requests that are authenticated by the key. Belongs to the event loop."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        is_proof_required: bool,
        random: Callable[[], bytes] = lambda: os.urandom(CHALLENGE_BYTES),
    ) -> None:
        """`random` makes an unguessable challenge."""
        self._credentials = credentials
        self._is_proof_required = is_proof_required
        self._random = random
        self._checks: dict[Peer, ProofCheck] = {}  # of open connections that have requested a challenge

    def guard(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same handlers for requests that show the key, others get NO_PERMISSION; and the one that gives out challenges."""
        guarded = {code: self._guarded(handler) for code, handler in handlers.items()}
        guarded[RequestCode.AEROBEE_CHALLENGE] = self._challenge
        return guarded

    def _challenge(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        check = self._checks.get(peer)
        if check is None:
            check = self._checks[peer] = ProofCheck(self._random())
            peer.on_close(self._closed)
        return request.reply(ext={CHALLENGE_FIELD: check.challenge.hex()})

    def _closed(self, peer: Peer) -> None:
        self._checks.pop(peer, None)

    def _guarded(self, handler: Handler) -> Handler:
        def checked(peer: Peer, request: RemotingCommand) -> object:
            if not self._shows_key(peer, request):
                raise RemoteError(
                    ResponseCode.NO_PERMISSION,
                    f"{request_name(request.code)} is not signed with the key of this quorum: set "
                    "innerClientAuthenticationCredentials alike at controllers and brokers, and give tools that key",
                )
            return handler(peer, request)

        return checked  # type: ignore[return-value]

    def _shows_key(self, peer: Peer, request: RemotingCommand) -> bool:
        if request.field(PROOF):
            check = self._checks.get(peer)
            return check is not None and check.takes(request, self._credentials)
        if self._is_proof_required or request.code in AEROBEE_ONLY:
            return False
        return request.field(ACCESS_KEY) == self._credentials.access_key and is_signed_with(
            request, self._credentials.secret_key
        )


def no_challenge(peer: Peer, request: RemotingCommand) -> RemotingCommand:
    """The answer of a controller that asks for no key: it takes no proofs."""
    return request.reply(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="authenticationEnabled is not set: no proof is taken"
    )
