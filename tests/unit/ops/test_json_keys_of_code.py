"""No command and no view of the console writes a camelCase key into a document: every dictionary literal is read from the code.

Dictionaries that are sent to a server, or that map RocketMQ's names to something, are listed with their reason.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

CAMEL = re.compile(r"[a-z][A-Z]")
ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("aerobee/ops/commands", "aerobee/ops/diagnosis", "aerobee/ops/terminal", "aerobee/console")
# file -> keys that may be there, because they are
SENT_TO_SERVERS = {
    "aerobee/console/topology.py": {"clusterName", "brokerName", "brokerId", "designateElect"},
    "aerobee/console/topology_actions.py": {"brokerPermission"},
    "aerobee/ops/commands/drain.py": {"brokerPermission"},
    "aerobee/ops/commands/ha.py": {
        "clusterName",
        "brokerName",
        "brokerId",
        "designateElect",
        "apartMillis",
        "brokerControllerIdsToClean",
        "isCleanLivingBroker",
    },
}
TABLES_OF_NAMES = {
    "aerobee/ops/commands/cluster.py",  # a broker's names -> those of the document
    "aerobee/ops/commands/timer.py",  # a broker's names -> those of the document
    "aerobee/ops/commands/other_names.py",  # mqadmin's verbs -> commands
    "aerobee/ops/diagnosis/grpc_findings.py",  # settings -> advice
}


def test_documents_have_keys_in_snake_case() -> None:
    wrong = []
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in TABLES_OF_NAMES:
            continue
        keys = {key for key in _keys(ast.parse(path.read_text())) if CAMEL.search(key)}
        wrong += [f"{name}: {key}" for key in sorted(keys - SENT_TO_SERVERS.get(name, set()))]
    assert wrong == []


def test_no_exception_is_left_over() -> None:
    for name, allowed in SENT_TO_SERVERS.items():
        assert allowed <= _keys(ast.parse((ROOT / name).read_text())), name
    for name in TABLES_OF_NAMES:
        assert any(CAMEL.search(key) for key in _keys(ast.parse((ROOT / name).read_text()))), name


def _keys(tree: ast.AST) -> set[str]:
    """The keys of dictionary literals, and of assignments to a key."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            found |= {
                key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
        elif isinstance(node, ast.Assign):
            found |= {
                target.slice.value
                for target in node.targets
                if isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and isinstance(target.slice.value, str)
            }
    return found
