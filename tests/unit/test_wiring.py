"""Parts are wired by constructor arguments: no object assigns to an attribute of a part that it holds. Read from the code.

`self.store.host = ...` hides who decides what; a method says it. Excused are the record that a class keeps for itself or
shares with one other, and what a hot path writes for each burst.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.sources import nodes, tree_of

PACKAGE = Path(__file__).resolve().parents[2] / "aerobee"
FOLDERS = ("broker", "store", "remoting", "nameserver")
EXCUSED = {
    # the state of one class, as a separate dataclass
    "remoting/server.py: self._endpoint.burst",
    "remoting/server.py: self._endpoint.http2",
    "remoting/server.py: self._endpoint.going_away",
    "store/recovery/recovery.py: self.report.*",
    "remoting/settings_calls.py: self._config.value",
    "broker/exporter/exporter.py: self.health.is_started",
    "nameserver/server.py: self.health.is_started",
    # each read, each burst
    "remoting/connection.py: self._calls.heard",
    "remoting/connection.py: self._calls.peer",
    "remoting/native_loop.py: self._native_selector.run",
    "broker/fastpath/python_backend.py: self._request.data",
    "broker/fastpath/python_backend.py: self._shared.at_end",
    # one step of two classes that are halves of one another
    "store/append/durability.py: self.flushed.value",
    "store/upkeep/queue_flush.py: self.index.unsynced_names",
    "broker/replication/controller_agent.py: self.mode.lease_until_s",
    "broker/replication/controller_agent.py: self.mode.on_set_wanted",
}


def targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target


def assignments(tree: ast.Module) -> Iterator[str]:
    """`self.part.attribute`, where it is assigned to."""
    for node in nodes(tree):
        for target in targets(node):
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Attribute)
                and isinstance(target.value.value, ast.Name)
                and target.value.value.id == "self"
            ):
                yield ast.unparse(target)


def test_no_part_is_set_from_outside() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for folder in FOLDERS
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for name in assignments(tree_of(path))
    }
    wrong = {each for each in found if each not in EXCUSED and f"{each.rpartition('.')[0]}.*" not in EXCUSED}
    assert wrong == set()
    unused = {
        each
        for each in EXCUSED
        if not any(name == each or name.startswith(each.rstrip("*")) for name in found)
    }
    assert unused == set(), "no longer needed"


def test_an_assignment_from_outside_is_seen() -> None:
    code = "class A:\n    def f(self):\n        self.store.host, x = 1, 2\n        self.own = 3\n        self.part.count += 1\n"
    assert list(assignments(ast.parse(code))) == ["self.store.host", "self.part.count"]
