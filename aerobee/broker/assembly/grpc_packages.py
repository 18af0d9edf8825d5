"""Whether the packages of the extra `grpc` are installed."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = ("h2", "google.protobuf")  # of the extra `grpc`


def grpc_is_installed() -> bool:
    """Whether the packages of the extra are installed. Loads none of them."""
    try:
        return all(find_spec(name) is not None for name in PACKAGES)
    except ModuleNotFoundError:  # the parent of a dotted name
        return False
