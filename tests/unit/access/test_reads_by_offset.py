"""Every handler that reads a record at an offset of its request checks the permission for the topic of that record."""

from __future__ import annotations

import ast

from tests.sources import nodes_of
from tests.unit.layers import PACKAGE

READS = {"send_back", "read_record", "read_record_cold", "half_at", "named_record", "named_half"}
# Handlers whose offset does not come from the request, or that check the record's topic themselves.
OTHERWISE = {
    "timer/timer_feature.py": "it reads the offsets in the timer's files, and none of a request",
    "timer/timer_calls.py": "a handle names a topic and an id; what is found is compared with both",
}


def test_reads_by_offset_check_the_records_topic() -> None:
    """A file with handlers that reads records uses RecordAccess, or stands above with its reason."""
    broker = PACKAGE / "broker"
    found = {}
    for path in sorted(broker.rglob("*.py")):
        called = {
            node.func.attr
            for node in nodes_of(path)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        defined = {node.name for node in nodes_of(path) if isinstance(node, ast.FunctionDef)}
        if called & READS and "handlers" in defined:
            found[path.relative_to(broker).as_posix()] = bool(
                {"may_view", "may_consume", "may_decide"} & called
            )
    assert {name for name, asks in found.items() if not asks} == set(OTHERWISE)
    assert {"membership/query.py", "send/send_back.py", "admin/relay.py", "transaction/end.py"} <= set(found)
