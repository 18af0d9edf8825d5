"""Slices of background work, between which the event loop serves requests."""

from __future__ import annotations

SLICE_S = 0.001  # longest slice of background work before other tasks run
SOON_STEPS = 3  # urgent background work: a quarter of a core
PAUSE_STEPS = 19  # pause after a background step, in steps: 5 % of a core
