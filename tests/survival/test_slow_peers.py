"""A few peers of each kind that hold a connection and do not keep to the conversation, see slow_peers.py."""

from __future__ import annotations

from tests.survival import slow_peers


def test_silent_partial_and_unresponsive_peers_are_closed() -> None:
    found = slow_peers.run_all(list(slow_peers.KINDS), peers=20, idle_s=1, server_name="aerobee")
    assert [figures["kind"] for figures in found] == list(slow_peers.KINDS)
    assert all(figures["probe_stored"] > 0 for figures in found)
