"""Whether the package of the extra `grpc` is installed."""

from __future__ import annotations

from importlib.util import find_spec

PROTOBUF = "google.protobuf"  # the package of the extra `grpc`


def grpc_is_installed() -> bool:
    """Whether protobuf is installed. Does not load it."""
    try:
        return find_spec(PROTOBUF) is not None
    except ModuleNotFoundError:  # the parent of a dotted name
        return False
