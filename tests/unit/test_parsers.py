"""Every parser of a server: it has a bound on its work, or stands here with the reason why it needs none.

What is not standard JSON is read in Python, a microsecond a byte, and a server parses headers and bodies before it knows who sent
them. fastjson.loads() and loads_object() bound that by default; this test finds whatever does not go by the default.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee.remoting import fastjson
from tests.sources import nodes_of
from tests.unit.layers import PACKAGE

# What runs in a broker, a NameServer, a controller or at one of their ports.
SERVERS = ("access", "broker", "console", "ha", "monitoring", "nameserver", "remoting", "store")
BOUNDED = {"loads", "loads_object"}  # of fastjson
PARSERS = {
    "loads",
    "loads_object",
    "loads_trusted",
    "safe_load",
    "load",
    "unpackb",
    "decompress",
    "decompressobj",
    "literal_eval",
    "fromstring",
}
ANSWER = "an answer, or a request of the own broker: clients and tools read it"
SERVER = "an answer of a server that this one is set up to ask"
FILE = "a file of this server"
# file -> what it parses without the default's bound, and why
REASONS = {
    "console/body_schemas.py": "schema files that the operator names, of bounded size",
    "remoting/fastjson.py": "the reader itself",
    "remoting/frame.py": "HEADER_BYTES_MAX",
    "remoting/json_header.py": "HEADER_BYTES_MAX, DIALECT_BYTES_MAX",
    "remoting/signature.py": "a frame of this process, and a setting",
    "remoting/body/register_broker.py": "Bounds: bytes behind decompression, bytes of the dialect in all parts together",
    **{f"remoting/body/{name}.py": ANSWER for name in (
        "broker_member_group", "cluster_info", "consume_stats", "consumer_connection", "consumer_running_info",
        "consumer_status", "group_list", "kv_table", "lock_batch", "producer_connection", "reset_offset", "route",
        "subscription_group", "topic_config", "topic_list", "topic_stats",
    )},
    "broker/fastpath/pop.py": "HEADER_BYTES_MAX, standard JSON only",
    "broker/grpc/message_form.py": "maxMessageSize for what is sent, DELIVERED_BYTES_MAX for what is delivered",
    "broker/fastpath/python_backend.py": "HEADER_BYTES_MAX, standard JSON only",
    "broker/fastpath/send_back.py": "a header that the backend has parsed: it has its bound",
    "broker/acting/acting_master.py": SERVER,
    "broker/replication/controller_client.py": SERVER,
    "broker/replication/metadata_sync.py": SERVER,
    "broker/static_topic/mapping_cleaning.py": SERVER,
    "broker/state/config_file.py": FILE,
    "broker/timer/pending_counts.py": FILE,
    "broker/recurring/schedule_table.py": "records that this broker or its master wrote, BODY_BYTES_MAX",
    "nameserver/kv_config.py": FILE,
    "access/closed.py": FILE,
    "access/users.py": FILE,
    "console/users.py": FILE,
    "console/masks.py": "BODY_BYTES_MAX, standard JSON only, nesting that is checked",
    "console/prometheus.py": "DOCUMENT_BYTES_MAX, standard JSON only",
    "console/server.py": "aiohttp's client_max_size, standard JSON only",
    "monitoring/page.py": "what it packed itself",
    "ha/packed.py": "MessagePack, at the speed of C, of a length that its callers bound",
}  # fmt: skip


def _parsers(path: Path) -> Iterator[ast.Call]:
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            called = node.func
            name = (
                called.attr
                if isinstance(called, ast.Attribute)
                else called.id
                if isinstance(called, ast.Name)
                else ""
            )
            owner = (
                called.value.id
                if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
                else ""
            )
            if name in PARSERS and not (
                name == "load" and owner not in {"json", "yaml", "pickle", "marshal"}
            ):
                yield node


def _is_bounded(call: ast.Call) -> bool:
    """Whether it is fastjson's with the default bound, or with a named one that is small."""
    called = ast.unparse(call.func)
    if called not in {"fastjson.loads", "fastjson.loads_object", "loads", "loads_object"}:
        return False
    count = 1 if called.endswith("loads") else 2
    given = [ast.unparse(each) for each in call.args[count:]] + [
        ast.unparse(each.value) for each in call.keywords
    ]
    return not given or not any("TRUSTED" in each for each in given)


def test_every_parser_of_a_server_has_a_bound_or_a_reason() -> None:
    found: dict[str, list[str]] = {}
    for part in SERVERS:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            calls = [ast.unparse(each)[:80] for each in _parsers(path) if not _is_bounded(each)]
            if calls:
                found[name] = calls
    unknown = {name: calls for name, calls in found.items() if name not in REASONS}
    assert unknown == {}, "give it a bound, or a reason above"
    assert set(REASONS) - set(found) <= {"remoting/frame.py", "broker/fastpath/python_backend.py"}


def test_a_bound_that_a_caller_names_is_not_above_what_a_loop_bears() -> None:
    """Named bounds of the dialect, in bytes: a microsecond each, on the event loop."""
    named = {
        ast.unparse(argument)
        for part in SERVERS
        for path in (PACKAGE / part).rglob("*.py")
        for call in _parsers(path)
        if _is_bounded(call)
        for argument in [
            *call.args[1 if ast.unparse(call.func).endswith("loads") else 2 :],
            *[k.value for k in call.keywords],
        ]
    }
    from aerobee.broker.admin.offset import STATUS_DIALECT_BYTES_MAX
    from aerobee.ha.controller.bodies import _DIALECT_BYTES_MAX
    from aerobee.remoting.json_header import DIALECT_BYTES_MAX

    known = {
        "fastjson.REQUEST_DIALECT_BYTES_MAX": fastjson.REQUEST_DIALECT_BYTES_MAX,
        "fastjson.REQUEST_DIALECT_BYTES_MAX * 8": fastjson.REQUEST_DIALECT_BYTES_MAX
        * 8,  # static topics, an administrator's
        "DIALECT_BYTES_MAX": DIALECT_BYTES_MAX,
        "_DIALECT_BYTES_MAX": _DIALECT_BYTES_MAX,
        "STATUS_DIALECT_BYTES_MAX": STATUS_DIALECT_BYTES_MAX,
        "dialect_bytes_max": 0,  # fastjson.loads_object()'s own
        "self._bytes_max": 0,  # register_broker.py: Bounds, next to the loop above REQUEST_DIALECT_BYTES_MAX
    }
    assert named <= set(known), "name the bound above"
    assert max(known.values()) <= 256 * 1024


@pytest.mark.parametrize("text", [b"{a:1}" + b" " * fastjson.REQUEST_DIALECT_BYTES_MAX, b"[" * 10_000_000])
def test_the_default_bounds_what_is_read_in_python(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastjson, "_Reader", lambda _: pytest.fail("read in Python"))
    with pytest.raises(fastjson.MalformedFrame, match="not standard JSON"):
        fastjson.loads(text)
