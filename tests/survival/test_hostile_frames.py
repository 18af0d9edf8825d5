"""Some thousand damaged frames against each role, see hostile_frames.py."""

from __future__ import annotations

import asyncio

import pytest

from tests.survival import hostile_frames

FRAMES = {"broker": 3_000, "nameserver": 2_000, "client": 6_000}


@pytest.mark.parametrize("role", FRAMES)
def test_damaged_frames_are_survived_and_others_served(role: str) -> None:
    figures = asyncio.run(hostile_frames.run(role, FRAMES[role], seed=2026))
    assert figures["faults"] == 0
