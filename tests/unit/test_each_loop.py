"""Tests of what peers may hold open run on every event loop that a server runs on (tests/loops.py)."""

from __future__ import annotations

import re

from tests.unit.layers import ROOT

# What bounds connections, handshakes and streams, by the names that tests set or import.
BOUNDS = re.compile(r"\b(CONNECTIONS_MAX|STREAMS_MAX|connections_max|tls_handshake_timeout|UNPROVEN_MAX)\b")


def test_tests_of_connection_bounds_run_on_each_event_loop() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): "import event_loop_policy" in text
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != "test_each_loop.py" and BOUNDS.search(text := path.read_text(encoding="utf-8"))
    }
    # Without sockets: a fake clock and fake transports.
    found.pop("tests/unit/ha/test_unproven_connections.py", None)
    assert {name for name, runs_on_each in found.items() if not runs_on_each} == set()
    assert {"tests/abuse/test_connections.py", "tests/unit/monitoring/test_web_listener.py"} <= set(found)
