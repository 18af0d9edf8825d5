"""Versions of clients as people write them."""

from __future__ import annotations

import pytest

from aerobee.remoting.command import VERSION
from aerobee.remoting.version_text import version_text


@pytest.mark.parametrize(
    ("ordinal", "text"),
    [
        (VERSION, "5.5.0"),
        (512, "5.5.0-snapshot"),
        (399, "4.9.3"),
        (213, "4.0.0"),
        (212, "4.0.0-snapshot"),
        (211, "before 4.0"),
        (611, "5.9.9"),
        (612, "above 5.9"),
        (-1, "unknown (-1)"),
    ],
)
def test_ordinals_have_a_version(ordinal: int, text: str) -> None:
    assert version_text(ordinal) == text
