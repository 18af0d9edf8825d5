"""Properties of a message for filters."""

from __future__ import annotations

ROW = {"a": "3", "b": "2.5", "color": "red", "flag": "true", "empty_": "x"}
