"""Access control for RPCs: the user in the header `authorization` must be permitted to make the equivalent remoting
request.

    authorization: MQv2-HMAC-SHA1 Credential=<access key>, SignedHeaders=x-mq-date-time, Signature=<hex>

The signature is HMAC-SHA1 of the text of `x-mq-date-time`; nothing else is signed, and clients write their local time, so it
proves the user and neither the request nor when it was made: TLS protects both. A proven user's request is signed here with
the user's key, as a client of remoting signs it, and passes the same gate with the same policies and the same audit log.
Addresses are those of the connection; headers that name an address are ignored (RocketMQ 5.5.0 believes
`rpc-remote-address`).
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

from aerobee.access.gate import Gate
from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.broker.grpc.rpc import AUTHORIZATION, DATE_TIME
from aerobee.errors import ConfigError, RemoteError
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.codes import RequestCode, ResponseCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.peer import Peer
from aerobee.remoting.signature import ACCESS_KEY, KEY_CHARS_MAX, SIGNATURE, Credentials

HEADER_CHARS_MAX = 1_024
_PAIR = re.compile(r"(\w+)=([^,]*)")


def parse_authorization(text: str) -> tuple[str, bytes]:
    """Return (access key, signature); empty where the header does not have them. Never raises."""
    _, _, pairs = text[:HEADER_CHARS_MAX].partition(" ")
    found = {name: value.strip() for name, value in _PAIR.findall(pairs)}
    # C++ and Go write more behind the key, separated by slashes.
    access_key = found.get("Credential", "").split("/")[0]
    try:
        return access_key, bytes.fromhex(found.get("Signature", ""))
    except ValueError:
        return access_key, b""


class RpcAccess:
    """Authenticates the user of an RPC and checks its permissions with the gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    @property
    def is_closed(self) -> bool:
        """Whether every call must prove its user."""
        return self._gate.is_closed

    def check(self, peer: Peer, metadata: Mapping[str, str], request: RemotingCommand) -> None:
        """Sign `request`, and return if its user may make it. Raises RpcRefused (UNAUTHORIZED)."""
        if self._gate.is_closed:
            try:
                self._sign(peer, metadata, request)
                self._gate.check(peer, request)
            except RemoteError as refusal:
                raise RpcRefused(pb.UNAUTHORIZED, refusal.remark) from refusal

    def prove(self, peer: Peer, metadata: Mapping[str, str]) -> None:
        """Return if the user that the metadata names is proven, or none is needed. Raises RpcRefused (UNAUTHORIZED).

        For a call whose request has not come: what it may do is not known yet, and check() decides.
        """
        if self._gate.is_closed:
            try:
                self._sign(peer, metadata, RemotingCommand(RequestCode.HEART_BEAT, {}, b"{}"))
            except RemoteError as refusal:
                raise RpcRefused(pb.UNAUTHORIZED, refusal.remark) from refusal

    def check_admin(self, peer: Peer, metadata: Mapping[str, str], request: RemotingCommand) -> None:
        """As check(); without access control it refuses every peer, unless adminOpen is set. Raises RpcRefused (UNAUTHORIZED).

        A loopback address proves nothing here: a balancer for HTTP/2 on this machine passes on clients of every address, and need not
        say so in a header.
        """
        try:
            self._sign(peer, metadata, request)
            self._gate.check(peer, request, trusts_own=False)
        except RemoteError as refusal:
            raise RpcRefused(pb.UNAUTHORIZED, refusal.remark) from refusal

    def identify(self, peer: Peer, metadata: Mapping[str, str]) -> None:
        """Set the peer's `principal` to its user. Raises RpcRefused (UNAUTHORIZED) for one that is not proven."""
        self.check(peer, metadata, RemotingCommand(RequestCode.HEART_BEAT, {}, b"{}"))

    def _sign(self, peer: Peer, metadata: Mapping[str, str], request: RemotingCommand) -> None:
        """Sign `request`, so that the gate knows its user. Raises RemoteError (16) for one that is not proven.

        Does nothing when access control is off, or off for the peer's listener.
        """
        gate = self._gate
        if not gate.is_closed or gate.exempts(peer):
            return
        access_key, given = parse_authorization(metadata.get(AUTHORIZATION, ""))
        request.ext = dict(request.ext or {})
        if access_key:
            request.ext[ACCESS_KEY] = access_key[:KEY_CHARS_MAX]
        secret = gate.signing_key(request, peer)
        if secret is None:
            return
        date = metadata.get(DATE_TIME, "")
        if not date or not hmac.compare_digest(hmac.digest(secret.encode(), date.encode(), "sha1"), given):
            request.ext[SIGNATURE] = ""
            gate.check(peer, request)
            raise RemoteError(ResponseCode.NO_PERMISSION, "check signature failed.")
        try:
            Credentials(access_key, secret).sign(request)
        except ConfigError as error:
            raise RemoteError(ResponseCode.NO_PERMISSION, str(error)) from error
