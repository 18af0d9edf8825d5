"""Source files as syntax trees, parsed once per test process: tests that read the code share them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

# Nodes without fields: a third of all nodes, and `ast.walk` visits each.
_MARKERS = {ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop}


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file. Do not change it: other tests read the same one.

    The garbage collector is off while a file is parsed: no node becomes garbage, and walking the trees of all other files
    for each of them takes four times as long as parsing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    finally:
        if was_enabled:
            gc.enable()


def nodes_of(path: Path) -> list[ast.AST]:
    """The nodes of a file, as `walk` lists them."""
    return nodes(tree_of(path))


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """The nodes of a tree that is kept, as `walk` lists them: all tests share the one list."""
    return walk(tree)


def walk(tree: ast.AST) -> list[ast.AST]:
    """The nodes of `ast.walk` in its order, without operators and contexts such as `Add` and `Load`."""
    found = [tree]
    for node in found:
        for value in node.__dict__.values():
            kind = type(value)
            if kind is int or kind is str or value is None:
                continue
            if kind is list:
                found += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and kind.__base__ not in _MARKERS:
                found.append(value)
    return found


def forget() -> None:
    """Drop the trees: some gigabytes for the whole code."""
    tree_of.cache_clear()
    nodes.cache_clear()
