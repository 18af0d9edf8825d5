from __future__ import annotations

import pytest

from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.request_proof import NUMBER, PROOF, ProofCheck, RequestProofs
from aerobee.remoting.signature import ACCESS_KEY, SIGNATURE, Credentials, is_signed_with

KEY = Credentials("inner", "a secret of some length")
CHALLENGE = bytes(range(16))


def proven(proofs: RequestProofs, code: int = 904, body: bytes = b"body") -> RemotingCommand:
    request = RemotingCommand(code, {"brokerName": "broker-a", "brokerId": "1"}, body)
    proofs.sign(request)
    return request


def with_ext(request: RemotingCommand, **changes: str | None) -> RemotingCommand:
    ext = {**(request.ext or {}), **changes}
    return RemotingCommand(
        request.code, {name: text for name, text in ext.items() if text is not None}, request.body
    )


def test_requests_are_taken_in_order_and_once() -> None:
    proofs, check = RequestProofs(KEY, CHALLENGE), ProofCheck(CHALLENGE)
    first, second, third = (proven(proofs) for _ in range(3))
    assert check.takes(first, KEY)
    assert not check.takes(first, KEY), "sent again"
    assert check.takes(third, KEY), "one was lost on the way"
    assert not check.takes(second, KEY), "sent late"


def test_a_proof_holds_for_one_connection() -> None:
    request = proven(RequestProofs(KEY, CHALLENGE))
    assert not ProofCheck(bytes(16)).takes(request, KEY)
    assert ProofCheck(CHALLENGE).takes(request, KEY)


def test_a_proof_covers_the_code_each_name_each_value_and_the_body() -> None:
    request = proven(RequestProofs(KEY, CHALLENGE))
    others = [
        RemotingCommand(1002, request.ext, request.body),
        RemotingCommand(904, request.ext, b"another"),
        with_ext(request, brokerId="2"),
        with_ext(request, brokerId=None, brokerIe="1"),
        with_ext(request, brokerName="broker-a1", brokerId=""),
        with_ext(request, extra=""),
        with_ext(request, **{ACCESS_KEY: "other"}),
        *(with_ext(request, **{NUMBER: number}) for number in ("2", "0", "-1", "x", "\u0661", "9" * 30, "")),
        with_ext(request, **{PROOF: ""}),
        with_ext(request, **{PROOF: "\udcff"}),
    ]
    check = ProofCheck(CHALLENGE)
    for other in others:
        assert not check.takes(other, KEY), other
    assert check.takes(request, KEY), "what was refused used up no number"


def test_a_proven_request_without_its_proof_is_not_signed() -> None:
    """Else it could be taken for one of RocketMQ's, which can be sent again."""
    request = RemotingCommand(904, {"brokerName": "broker-a"}, b"")
    KEY.sign(request)
    RequestProofs(KEY, CHALLENGE).sign(request)
    assert SIGNATURE not in (request.ext or {})
    bare = with_ext(request, **{PROOF: None, NUMBER: None})
    assert not is_signed_with(bare, KEY.secret_key)


def test_another_key_proves_nothing() -> None:
    other = Credentials("inner", "another secret of some length")
    assert not ProofCheck(CHALLENGE).takes(proven(RequestProofs(other, CHALLENGE)), KEY)


@pytest.mark.parametrize("name", [NUMBER, PROOF])
def test_a_request_without_number_or_proof_is_not_taken(name: str) -> None:
    request = with_ext(proven(RequestProofs(KEY, CHALLENGE)), **{name: None})
    assert not ProofCheck(CHALLENGE).takes(request, KEY)
