"""Receipt handles of RPCs: remoting's handle, followed by the record's physical offset in the commit log.

    start offset | pop time | invisible time | revive queue id | r | broker name | queue id | queue offset | physical offset

Nine words, as RocketMQ's proxy writes them in cluster mode: an acknowledgement may come through either. Core.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.grpc.refusal import RpcRefused
from aerobee.errors import MalformedFrame
from aerobee.grpc.proto import messages as pb
from aerobee.remoting.body.pop_handle import HANDLE_CHARS_MAX, HANDLE_TOKENS, Handle, parse_handle

CHANGED_MS_MAX = 43_200_000  # maxInvisibleTimeMills


@dataclass(frozen=True, slots=True)
class Receipt:
    """A client's receipt for one message. `physical_offset` is its record's offset, None in a handle without it."""

    handle: Handle
    physical_offset: int | None

    def __str__(self) -> str:
        where = "" if self.physical_offset is None else f" {self.physical_offset}"
        return f"{self.handle}{where}"


def parse_receipt(text: str, *, broker_name: str | None) -> Receipt:
    """Read a receipt handle of this broker; of any broker where `broker_name` is None. Raises RpcRefused (INVALID_RECEIPT_HANDLE), which ends a client's repetitions."""
    if len(text) > HANDLE_CHARS_MAX:
        raise RpcRefused(
            pb.INVALID_RECEIPT_HANDLE,
            f"the receipt handle has {len(text)} characters, at most {HANDLE_CHARS_MAX} are possible",
        )
    tokens = text.split(" ")
    if len(tokens) < HANDLE_TOKENS:
        raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, f"{text[:120]!r} is not a receipt handle")
    try:
        handle = parse_handle(text)
    except MalformedFrame as error:
        raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, f"{text[:120]!r} is not a receipt handle") from error
    if broker_name is not None and handle.broker_name != broker_name:
        raise RpcRefused(
            pb.INVALID_RECEIPT_HANDLE,
            f"the receipt handle is of broker {handle.broker_name}, not of {broker_name}",
        )
    return Receipt(handle, _physical_offset(tokens[HANDLE_TOKENS:]))


def check_in_time(handle: Handle, now_ms: int) -> None:
    """Raise RpcRefused for a handle whose invisible time has ended."""
    if handle.revive_time <= now_ms:
        raise RpcRefused(pb.INVALID_RECEIPT_HANDLE, "receipt handle is expired")


def _physical_offset(tokens: list[str]) -> int | None:
    text = tokens[-1] if tokens else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
