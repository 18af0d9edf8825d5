"""Arguments and results of actions, and helpers that read fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee.errors import UsageError

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result or the preview of an action: `text` is a sentence, `rows` are its details. `frozen`: fields with which a run
    does no more than this preview shows. `rest`: fields with which another run continues where this one stopped; empty when it
    is complete."""

    command: str
    text: str
    rows: tuple[dict[str, Any], ...] = ()
    frozen: Fields = field(default_factory=dict)
    rest: Fields = field(default_factory=dict)


Run = Callable[[Fields, bool], Awaitable[Outcome]]
MakeCommand = Callable[..., str]
"""Makes the text of the equivalent command from its words."""


def text(fields: Fields, name: str) -> str:
    """A text that must be given. Raises UsageError."""
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} is missing")
    return value.strip()


def integer(fields: Fields, name: str) -> int:
    """A whole number. Raises UsageError."""
    value = fields.get(name)
    try:
        return int(str(value))
    except ValueError:
        raise UsageError(f"{name} is {value!r}, not a whole number") from None
