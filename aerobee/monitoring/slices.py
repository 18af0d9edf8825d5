"""How work that nobody waits for shares the event loop with what somebody does."""

from __future__ import annotations

SLICE_S = 0.001  # so long numbers are worked on before others get their turn
SOON_STEPS = 3  # what is wanted soon: a quarter of a core
PAUSE_STEPS = 19  # a step that nobody waits for, then a pause of so many: 5 % of a core
