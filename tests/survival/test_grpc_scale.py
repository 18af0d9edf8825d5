"""Small runs of grpc_scale.py: some hundred gRPC connections whose streams stop reading, at both HTTP/2 cores."""

from __future__ import annotations

import pytest

from tests.survival import grpc_scale

COUNT, LIMIT_MIB = 300, 16  # 75 MiB of responses


@pytest.mark.parametrize("server", ["aerobee", "aerobee-python"])
def test_streams_that_never_read_cost_bounded_memory(server: str) -> None:
    if server == "aerobee":
        pytest.importorskip("aerobee_native")
    figures = grpc_scale.run(server, count=COUNT, limit_mib=LIMIT_MIB)
    assert figures["requested_mib"] > 4 * LIMIT_MIB
    assert 0 < figures["stalled_at_the_end"] * grpc_scale.RESPONSE_BYTES <= LIMIT_MIB << 20
    assert figures["closed"] > COUNT // 2
