"""Every public function of broker/ and store/ says what the types cannot. Read from the code; nothing is imported.

A method needs no docstring where the interface has one that its class fulfils: a base class, a Protocol whose
members it all has, or asyncio's protocols and transports. Members of a Protocol without a body are described by who implements
them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.sources import nodes, tree_of

PACKAGE = Path(__file__).resolve().parents[2] / "aerobee"
FOLDERS = ("broker", "store")
ASYNCIO = {
    "connection_made",
    "connection_lost",
    "data_received",
    "eof_received",
    "pause_writing",
    "resume_writing",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees() -> dict[Path, ast.Module]:
    paths = [path for folder in (*FOLDERS, "remoting") for path in sorted((PACKAGE / folder).rglob("*.py"))]
    return {path: tree_of(path) for path in paths}


def methods(node: ast.ClassDef) -> dict[str, Function]:
    return {each.name: each for each in node.body if isinstance(each, Function)}


def base_names(node: ast.ClassDef) -> list[str]:
    return [base.id if isinstance(base, ast.Name) else ast.unparse(base) for base in node.bases]


class Interfaces:
    """What the classes of the package fulfil."""

    def __init__(self, parsed: dict[Path, ast.Module]) -> None:
        self.classes = {
            node.name: node
            for tree in parsed.values()
            for node in nodes(tree)
            if isinstance(node, ast.ClassDef)
        }
        self.protocols = [
            node
            for node in self.classes.values()
            if any(base.startswith("Protocol") for base in base_names(node))
        ]

    def describes(self, node: ast.ClassDef, name: str) -> bool:
        """Whether a base class, or a Protocol that the class has every member of, has a docstring for this method."""
        if name in ASYNCIO:
            return True
        own = self._members(node)
        found = [self.classes[base] for base in base_names(node) if base in self.classes]
        found += [each for each in self.protocols if each is not node and set(methods(each)) <= own]
        return any(
            (method := methods(each).get(name)) is not None and ast.get_docstring(method) for each in found
        ) or any(
            self.describes(self.classes[base], name) for base in base_names(node) if base in self.classes
        )

    def _members(self, node: ast.ClassDef) -> set[str]:
        members = set(methods(node))
        for base in base_names(node):
            if base in self.classes:
                members |= self._members(self.classes[base])
        return members


def has_no_body(function: Function) -> bool:
    return len(function.body) == 1 and ast.unparse(function.body[0]) == "..."


def is_setter(function: Function) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in function.decorator_list)


def undocumented() -> Iterator[str]:
    parsed = trees()
    interfaces = Interfaces(parsed)

    def look(path: Path, body: list[ast.stmt], owner: ast.ClassDef | None) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from look(path, node.body, node)
            if not isinstance(node, Function) or node.name.startswith("_") or ast.get_docstring(node):
                continue
            if has_no_body(node) or is_setter(node):
                continue
            if owner is None or not interfaces.describes(owner, node.name):
                yield f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}"

    for path, tree in parsed.items():
        if path.relative_to(PACKAGE).parts[0] in FOLDERS:
            yield from look(path, tree.body, None)


def test_every_public_function_of_broker_and_store_is_described() -> None:
    assert list(undocumented()) == []


def test_a_function_without_a_docstring_is_found() -> None:
    """The reader sees what it has to: without the docstrings of Protocols hundreds would be missing."""
    parsed = trees()
    interfaces = Interfaces(parsed)
    assert interfaces.describes(interfaces.classes["RealDisk"], "read_file")
    assert not interfaces.describes(interfaces.classes["MessageStore"], "cut_to")
