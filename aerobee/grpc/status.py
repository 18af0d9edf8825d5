"""The status of a gRPC call, and its encoding in trailers. Core.

Source: the gRPC protocol over HTTP/2. RocketMQ's status codes are in response messages; these status codes
end calls without a response message.
"""

from __future__ import annotations

from enum import IntEnum

MESSAGE_BYTES_MAX = 1_024  # maximum size of grpc-message before encoding: clients refuse larger header lists


class GrpcStatus(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A call that ends without a response message, or before its stream of responses is complete."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def encode_status_message(text: str) -> str:
    """Percent-encode a message for the trailer grpc-message, truncated to MESSAGE_BYTES_MAX bytes."""
    data = text.encode(errors="replace")[:MESSAGE_BYTES_MAX]
    return "".join(chr(byte) if 0x20 <= byte <= 0x7E and byte != 0x25 else f"%{byte:02X}" for byte in data)
