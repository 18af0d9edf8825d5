"""A protocol has two implementations, or one in tests, or says why it is one."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SAYS_WHY = "A protocol"  # how the sentence in the docstring begins that tells why


class Class(NamedTuple):
    """One class: where it is, its bases, and the names of its methods and attributes."""

    path: str
    name: str
    bases: tuple[str, ...]
    members: frozenset[str]
    says_why: bool

    @property
    def is_protocol(self) -> bool:
        return any(base.partition("[")[0] == "Protocol" for base in self.bases)


def members_of(node: ast.ClassDef) -> frozenset[str]:
    found = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            found.add(each.target.id)
        if isinstance(each, ast.Assign):
            found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            if each.name != "__init__":
                found.add(each.name)
            found |= {
                part.attr
                for part in ast.walk(each)
                if isinstance(part, ast.Attribute)
                and isinstance(part.ctx, ast.Store)
                and isinstance(part.value, ast.Name)
                and part.value.id == "self"
            }
    return frozenset(found)


def classes_of(path: str, source: str) -> Iterable[Class]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            bases = tuple(map(ast.unparse, node.bases))
            yield Class(path, node.name, bases, members_of(node), SAYS_WHY in (ast.get_docstring(node) or ""))


def with_inherited(
    one: Class, by_name: dict[str, Class], seen: frozenset[str] = frozenset()
) -> frozenset[str]:
    found = one.members
    for base in one.bases:
        name = base.partition("[")[0].rpartition(".")[2]
        if name in by_name and name not in seen:
            found |= with_inherited(by_name[name], by_name, seen | {one.name})
    return found


def lone_protocols(classes: list[Class]) -> list[str]:
    """Protocols of aerobee/ that at most one class of it has all members of, and none of tests/, and that do not say why."""
    by_name = {each.name: each for each in classes}
    others = [
        (each.path, with_inherited(each, by_name))
        for each in classes
        if not each.is_protocol
        and not any(base in by_name and by_name[base].is_protocol for base in each.bases)
    ]
    found = []
    for each in classes:
        if each.is_protocol and each.path.startswith("aerobee") and not each.says_why:
            members = with_inherited(each, by_name)
            having = [path for path, names in others if members <= names]
            if len(having) < 2 and not any(path.startswith("tests") for path in having):
                found.append(f"{each.path}: {each.name}")
    return found


def test_a_protocol_of_one_implementation_says_why() -> None:
    classes = [
        found
        for folder in ("aerobee", "tests")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for found in classes_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]
    assert lone_protocols(classes) == [], f"use the class, or add a sentence that begins with {SAYS_WHY!r}"


def test_a_lone_protocol_is_found() -> None:
    source = "class Log(Protocol):\n    end: int\n\nclass CommitLog:\n    def __init__(self):\n        self.end = 0\n"
    classes = list(classes_of("aerobee/a.py", source))
    assert lone_protocols(classes) == ["aerobee/a.py: Log"]
    assert lone_protocols([*classes, *classes_of("tests/b.py", "class Fake:\n    end = 1\n")]) == []
    assert (
        lone_protocols(
            list(
                classes_of(
                    "aerobee/a.py", source.replace("end: int", '"""A protocol, for x."""\n    end: int')
                )
            )
        )
        == []
    )
