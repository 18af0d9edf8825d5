"""Source files as syntax trees, parsed once per test process: tests that read the code share them."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


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
