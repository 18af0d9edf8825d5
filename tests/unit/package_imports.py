"""The imports of the package's modules, read from the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.sources import tree_of
from tests.unit.layers import ROOT


class Import(NamedTuple):
    """One imported module, absolute, with its position."""

    module: str
    line: int
    inside_function: bool
    type_checking: bool


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    found: list[Import] = []
    waiting = [(tree_of(path).body, False, False)]  # blocks of statements: inside a function, for types only
    for statements, inside_function, type_checking in waiting:
        for node in statements:
            names = _imported(node, package)
            found += [Import(name, node.lineno, inside_function, type_checking) for name in names]
            function = inside_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            checking = type_checking or (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            )
            waiting += [(block, function, checking) for block in _blocks(node)]
    return tuple(found)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The blocks of statements of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block
    for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield each.body


def _imported(node: ast.stmt, package: tuple[str, ...]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = list(package[: len(package) - node.level + 1]) if node.level else []
    module = ".".join([*base, *([node.module] if node.module else [])])
    return [
        module,
        *(f"{module}.{alias.name}" for alias in node.names if _is_module(f"{module}.{alias.name}")),
    ]


@cache
def _is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return name.startswith("aerobee.") and (
        path.with_suffix(".py").exists() or (path / "__init__.py").exists()
    )
