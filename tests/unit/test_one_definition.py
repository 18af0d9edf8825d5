"""A constant has one definition: no second module of aerobee/ gives the same name the same number or text, and none gives
another name the same text or layout.

Constants of the native module are compared with the Python definition that they repeat.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee import message, record_head, system_names
from aerobee.broker.fastpath import delivery, exclusions, guard, pull, request
from aerobee.broker.grpc import message_checks, message_form, rpc, times
from aerobee.broker.metrics import metrics
from aerobee.broker.pop import check_point, revive_log
from aerobee.broker.send import send_header, timer_properties
from aerobee.grpc.proto import messages as pb
from aerobee.remoting import command, frame, protocol
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.request_stats import FAST_CODES
from aerobee.store.files import config
from aerobee.store.log import commit_log
from aerobee.store.queue import consume_queue
from aerobee.store.read import warmer
from aerobee.store.read.reader import RESULT_BYTES_MAX
from tests.sources import tree_of, walk

PACKAGE = Path(__file__).resolve().parents[2] / "aerobee"
# Names that several modules use for separate choices: equal today, and each may change without the others.
INDEPENDENT = {
    "BACKLOG": "listen backlogs of separate ports",
    "CALLS_AT_ONCE": "concurrency of separate commands",
    "DELIVERIES_PER_PASS": "work per event loop iteration of separate loops",
    "HOST": "loopback, where separate tools listen",
    "INTERRUPTED": "the entry point of the command line imports nothing before it parses",
    "LAYOUTS_KEPT": "sizes of separate caches",
    "LIST_MAX": "limits of separate commands",
    "NAME_CHARS_MAX": "access resources and registered names are bounded for separate reasons",
    "KEY_CHARS_MAX": "duplicate keys, columns of databases and signing keys are bounded for separate reasons",
    "NAMED_MAX": "names in a log line of separate servers",
    "NOTES_MAX": "log lines of separate scans",
    "OTHER": "a label of separate metric families",
    "PAGE_BYTES": "the wheel's file format and the simulated disk",
    "PAUSE_FACTOR": "back-off of separate loops",
    "PORT": "the console is imported only when it starts",
    "QUEUES": "queues of separate simulated topics",
    "QUEUES_PER_TURN": "work per event loop iteration of separate scans",
    "QUEUE_COUNT": "defaults of separate commands",
    "RECORDS_PER_STEP": "work per event loop iteration of separate loops",
    "RECORD_BYTES": "read-ahead of separate scans",
    "REMEMBERED_MAX": "sizes of separate caches",
    "SHOWN_MAX": "lines of separate commands",
    "VERSION": "versions of separate formats",
    "WINDOW_MS": "how far back separate scans look, each for its reason",
    "RECORDS_MAX": "bounds of separate scans",
    "WAITING_MAX": "bounds of separate queues",
}
# Fields of a record whose offsets the native module uses.
RECORD_FIELDS = (
    "magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp", "store_timestamp",
    "reconsume_times", "body_size",
)  # fmt: skip
# Texts and layouts that several modules define under different names, for separate things.
INDEPENDENT_VALUES = {
    "'127.0.0.1'": "where separate tools listen",
    "'aerobeeLogEnd'": "a key of a file, and a field of a reply",
    "'default'": "listeners of separate servers",
    "'other'": "a label of separate metric families",
    "struct.Struct('>8sqqqq')": "layouts of separate files",
    "struct.Struct('>II')": "two words of separate files and of a frame",
    "struct.Struct('>iq')": "an entry and a report of the stream",
    "struct.Struct('>qi')": "a queue entry and a head of the stream",
}
INDEPENDENT_ENDINGS = ("_S",)  # a duration of waiting belongs to the loop or call that waits


def _literal(node: ast.expr) -> object:
    """The value of a number, a text, or arithmetic of numbers; None for anything else."""
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp)
    if not all(isinstance(each, allowed) for each in walk(node)):
        return None
    value: object = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})
    return value if isinstance(value, int | float | str | bytes) and value not in ("", b"") else None


def _constants(tree: ast.Module) -> dict[str, object]:
    found: dict[str, object] = {}
    for node in tree.body:
        targets: list[ast.expr] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and value is not None:
            name = targets[0].id.lstrip("_")
            literal = _literal(value)
            if name.isupper() and literal is not None:
                found[name] = literal
    return found


def _repeated(sources: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Constant -> the modules that define it with the same value, where these are several and it is no exception."""
    where: dict[tuple[str, type, object], list[str]] = defaultdict(list)
    for module, tree in sources.items():
        for name, value in _constants(tree).items():
            where[name, type(value), value].append(module)
    return {
        name: modules
        for (name, _, _), modules in where.items()
        if len(modules) > 1 and name not in INDEPENDENT and not name.endswith(INDEPENDENT_ENDINGS)
    }


def test_no_constant_is_defined_twice() -> None:
    sources = {str(path.relative_to(PACKAGE)): tree_of(path) for path in PACKAGE.rglob("*.py")}
    assert _repeated(sources) == {}


def test_a_second_definition_is_found_under_a_private_name_too() -> None:
    sources = {
        "a.py": "MASTER_ID = 0",
        "b.py": "_MASTER_ID: int = 1 - 1",
        "c.py": "MASTER_ID = 5\nTICK_S = 1.0",
        "d.py": "TICK_S = 1.0",
    }
    assert _repeated({name: ast.parse(source) for name, source in sources.items()}) == {
        "MASTER_ID": ["a.py", "b.py"]
    }


def _values(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(value, name) of the constants of a module that are texts of some length, layouts of several fields, or lists of texts."""
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, node.value
        if not name.lstrip("_").isupper():
            continue
        is_text = isinstance(value, ast.Constant) and isinstance(value.value, str) and len(value.value) > 4
        text = ast.unparse(value)
        is_layout = re.fullmatch(r"struct\.Struct\('>(?=.*[a-zA-Z].*[a-zA-Z])\w+'\)", text) is not None
        is_list = (
            isinstance(value, ast.Tuple) and len(value.elts) > 2 and re.search(r"['\"]", text) is not None
        )
        if is_text or is_layout or is_list:
            yield text, name


def _repeated_values(sources: dict[str, ast.Module]) -> dict[str, list[str]]:
    where: dict[str, list[str]] = defaultdict(list)
    for module, tree in sources.items():
        for value, name in _values(tree):
            where[value].append(f"{module}: {name}")
    return {value: found for value, found in where.items() if len({each.split(":")[0] for each in found}) > 1}


def test_no_text_or_layout_is_defined_twice_under_two_names() -> None:
    sources = {str(path.relative_to(PACKAGE)): tree_of(path) for path in PACKAGE.rglob("*.py")}
    repeated = _repeated_values(sources)
    assert {value: found for value, found in repeated.items() if value not in INDEPENDENT_VALUES} == {}
    assert INDEPENDENT_VALUES.keys() <= repeated.keys()


def test_a_text_under_another_name_is_found() -> None:
    sources = {
        "a.py": "NAME = 'topics'\nA = struct.Struct('>qi')",
        "b.py": "_OTHER = 'topics'\nB = struct.Struct('>qi')",
    }
    assert _repeated_values({name: ast.parse(source) for name, source in sources.items()}) == {
        "'topics'": ["a.py: NAME", "b.py: _OTHER"],
        "struct.Struct('>qi')": ["a.py: A", "b.py: B"],
    }


def test_exceptions_are_still_needed() -> None:
    defined: dict[str, int] = defaultdict(int)
    for path in PACKAGE.rglob("*.py"):
        for name in _constants(tree_of(path)):
            defined[name] += 1
    assert [name for name in INDEPENDENT if defined[name] < 2] == []


def test_fields_of_a_record_have_the_offsets_of_the_layout() -> None:
    assert record_head.HEAD_V4.size == 88
    assert record_head.RECORD_BYTES_MIN == 91
    record = message.encode_record(
        topic=b"t", queue_id=3, queue_offset=4, physical_offset=5, body=b"body", properties=b"", flag=6,
        born_timestamp=7, born_host=bytes(8), store_timestamp=8, store_host=bytes(8), reconsume_times=9,
        prepared_transaction_offset=10,
    )  # fmt: skip
    names = (
        "size", "magic", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp",
        "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_size",
    )  # fmt: skip
    found = dict(zip(names, record_head.head_struct(*names).unpack_from(record), strict=True))
    assert found == {
        "size": len(record), "magic": message.MAGIC_V1, "queue_id": 3, "flag": 6, "queue_offset": 4, "physical_offset": 5,
        "sys_flag": 0, "born_timestamp": 7, "store_timestamp": 8, "reconsume_times": 9, "prepared_transaction_offset": 10,
        "body_size": 4,
    }  # fmt: skip


def test_the_native_module_repeats_the_python_constants() -> None:
    native = pytest.importorskip("aerobee_native")
    expected: dict[str, object] = {
        "MAGIC_V1": message.MAGIC_V1,
        "MAGIC_V2": message.MAGIC_V2,
        "BORN_HOST_V6": message.BORN_HOST_V6,
        "STORE_HOST_V6": message.STORE_HOST_V6,
        "NEED_UNWRAP": message.NEED_UNWRAP,
        "INNER_BATCH": message.INNER_BATCH,
        "TRANSACTION_MASK": message.TRANSACTION_MASK,
        "TRANSACTION_PREPARED": message.TRANSACTION_PREPARED,
        "TRANSACTION_COMMIT": message.TRANSACTION_COMMIT,
        "TRANSACTION_ROLLBACK": message.TRANSACTION_ROLLBACK,
        "PROPERTIES_BYTES_MAX": message.PROPERTIES_BYTES_MAX,
        "RETRY_PREFIX": message.RETRY_PREFIX.encode(),
        "DLQ_PREFIX": message.DLQ_PREFIX.encode(),
        "TOPIC_BYTES_MAX": message.TOPIC_BYTES_MAX,
        "LMQ_PREFIX": system_names.LMQ_PREFIX.encode(),
        "SCHEDULE_TOPIC": system_names.SCHEDULE_TOPIC.encode(),
        "HALF_TOPIC": system_names.HALF_TOPIC.encode(),
        "HEAD_BYTES": record_head.HEAD_V4.size,
        "RECORD_BYTES_MIN": record_head.RECORD_BYTES_MIN,
        **{f"{name.upper()}_AT": record_head.field_at(name) for name in RECORD_FIELDS},
        "BATCH_ENTRY_HEAD_BYTES": message.BATCH_ENTRY_HEAD.size,
        "QUEUE_ENTRY_BYTES": consume_queue.ENTRY_BYTES,
        "QUEUE_OFFSET_MAX": consume_queue.QUEUE_OFFSET_MAX,
        "FILLER_SIZE": consume_queue.FILLER_SIZE,
        "ELIGIBLE_SYS_FLAG": exclusions.ELIGIBLE_SYS_FLAG,
        "REPLY_BYTES_MAX": request.REPLY_BYTES_MAX,
        "FRAME_BYTES_MAX": frame.FRAME_BYTES_MAX,
        "RESULT_BYTES_MAX": RESULT_BYTES_MAX,
        "FLAG_ONEWAY": command.FLAG_ONEWAY,
        "REPLY_VERSION": command.VERSION,
        "PULL_COMMIT_OFFSET": protocol.PULL_COMMIT_OFFSET,
        "PULL_SUSPEND": protocol.PULL_SUSPEND,
        "PULL_SUBSCRIPTION": protocol.PULL_SUBSCRIPTION,
        "PULL_COUNT_MAX": protocol.PULL_COUNT_MAX,
        "HOLD_MS_MAX": protocol.HOLD_MS_MAX,
        "SEND_MESSAGE": RequestCode.SEND_MESSAGE,
        "SEND_MESSAGE_V2": RequestCode.SEND_MESSAGE_V2,
        "SEND_BATCH_MESSAGE": RequestCode.SEND_BATCH_MESSAGE,
        "PULL_MESSAGE": RequestCode.PULL_MESSAGE,
        "LITE_PULL_MESSAGE": RequestCode.LITE_PULL_MESSAGE,
        "END_TRANSACTION": RequestCode.END_TRANSACTION,
        "SEND_BACK": RequestCode.CONSUMER_SEND_MSG_BACK,
        "SEND_BACK_EXTRAS": list(exclusions.SEND_BACK_EXTRAS),
        "SEND_BACK_SPECIAL": list(exclusions.SEND_BACK_SPECIAL),
        "SEND_BACK_LEVEL_MAX": exclusions.SEND_BACK_LEVEL_MAX,
        "SEND_BACK_PAIRS_MAX": exclusions.SEND_BACK_PAIRS_MAX,
        "SEND_BACK_RECORD_BYTES_MAX": exclusions.SEND_BACK_RECORD_BYTES_MAX,
        "FIRST_RETRY_LEVEL": send_header.FIRST_RETRY_LEVEL,
        "VERSION_WITH_MAX_RECONSUME": send_header.VERSION_WITH_MAX_RECONSUME,
        "FAST_CODES": list(FAST_CODES),
        "HEADER_BYTES_MAX": frame.HEADER_BYTES_MAX,
        "NUMBER_CHARS_MAX": exclusions.NUMBER_CHARS_MAX,
        "LEVEL_MAX": exclusions.LEVEL_MAX,
        "DELAY_DIGITS_MAX": timer_properties.DIGITS_MAX,
        "BATCH_ENTRIES_MAX": send_header.FAST_BATCH_ENTRIES_MAX,
        "BATCH_HASHES_MAX": send_header.FAST_BATCH_HASHES_MAX,
        "LMQS_MAX": exclusions.LMQS_MAX,
        "PRIORITY_CHARS_MAX": exclusions.PRIORITY_CHARS_MAX,
        "ACK_LEVELS": list(message.ACK_LEVELS),
        "BATCH_PROPERTIES": list(exclusions.BATCH_PROPERTIES),
        "BATCH_MESSAGE_PROPERTIES": list(exclusions.BATCH_MESSAGE_PROPERTIES),
        "GUARDED_FIELDS_MAX": exclusions.GUARDED_FIELDS_MAX,
        "GUARDED_TEXT_CHARS_MAX": exclusions.GUARDED_TEXT_CHARS_MAX,
        "GRANTS_MAX": guard.REMEMBERED_MAX,
        "AUTHORIZATIONS_MAX": pull.AUTHORIZATIONS_MAX,
        "SQL_PREFIX": ord(pull.SQL_PREFIX),
        "NEAR_ENTRIES": warmer.NEAR_ENTRIES,
        "SCATTERED_COUNT_MAX": config.SCATTERED_COUNT_MAX,
        "RUN_BYTES_MAX": config.RUN_BYTES_MAX,
        "DELIVERY_BYTES_MAX": delivery.BURST_BYTES_MAX,
        "BLANK_BYTES": commit_log.BLANK_BYTES,
        "CK_LEAD_MS": check_point.CK_LEAD_MS,
        "POP_PRECISION_MS": revive_log.PRECISION_MS,
        "GRPC_OK": pb.OK,
        "GRPC_PROPERTIES_BYTES_MAX": message_checks.USER_PROPERTY_BYTES_MAX,
        "GRPC_SECONDS_MAX": times.SECONDS_MAX,
        "GRPC_CLIENT_ID_CHARS_MAX": rpc.CLIENT_ID_CHARS_MAX,
        "GRPC_BORN_HOST": message_form.BORN_HOST,
        "GRPC_BORN_TIMESTAMP": message_form.BORN_TIMESTAMP,
        "GRPC_TRACE_CONTEXT": message_form.TRACE_CONTEXT,
        "SIZE_ENDS": list(metrics.SIZE_ENDS),
    }
    assert expected == native.CONSTANTS
