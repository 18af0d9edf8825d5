"""Runs tests of the HTTP/2 core against both of them: Python's, which is the reference, and the native one where it is built."""

from __future__ import annotations

import pytest

from aerobee.grpc.http2_connection import Http2Connection
from tests.unit.grpc.raw_peer import RawPeer


@pytest.fixture(params=["python", "native"])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which core RawPeer talks to."""
    made = (
        Http2Connection
        if request.param == "python"
        else pytest.importorskip("aerobee_native").Http2Connection
    )
    monkeypatch.setattr(RawPeer, "make_core", made)
    return str(request.param)
