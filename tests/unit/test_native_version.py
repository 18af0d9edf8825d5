"""A native module of another seam is refused at start, with a word, only when the seam's number was raised with the seam."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from aerobee.broker.fastpath.seam import FAST_PATH_VERSION

STUB = Path(__file__).resolve().parents[2] / "native" / "aerobee_native.pyi"
# Both change together: the digest of what the stub says, and the number for which it says it.
SEAM = (32, "a3d5246368d9f341")


def digest(text: str) -> str:
    """Of names, arguments and types; docstrings and comments may change."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [
                each
                for each in body
                if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            ]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def test_the_seam_has_not_changed_without_its_number() -> None:
    version, known = SEAM
    found = digest(STUB.read_text(encoding="utf-8"))
    assert (FAST_PATH_VERSION, found) == (version, known), (
        "native/aerobee_native.pyi changed: raise FAST_PATH_VERSION in broker/fastpath/seam.py and native/src/lib.rs, "
        f"and write ({version + 1}, {found!r}) here, so that an older native module is refused with a word"
    )


def test_a_new_argument_is_a_change_and_a_new_docstring_is_none() -> None:
    stub = "class Sockets:\n    def run(self, timeout_s: float) -> int: ...\n"
    assert digest(stub.replace(": ...", ": # wait\n        '''Wait.'''\n        ...")) == digest(stub)
    assert digest(stub.replace("timeout_s: float", "timeout_s: float, linger_s: float = -1.0")) != digest(
        stub
    )
