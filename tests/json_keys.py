"""Keys of the JSON documents that commands and the console print are in snake_case; maps whose keys are names are exempt."""

from __future__ import annotations

import json
import re
from typing import Any

SNAKE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
# Maps whose keys are names, not fields: a user's properties, RocketMQ's statuses and runtime information, queues.
MAPS_OF_NAMES = frozenset({"properties", "queues", "runtime", "statuses"})
# Commands whose document is a file in RocketMQ's format.
FOREIGN = (("cluster", "export"),)


def wrong_keys(document: Any, path: str = "") -> list[str]:
    """Paths of the keys that are not in snake_case."""
    if isinstance(document, list):
        return [wrong for each in document for wrong in wrong_keys(each, path)]
    if not isinstance(document, dict):
        return []
    found = []
    for key, value in document.items():
        at = f"{path}.{key}" if path else key
        if not SNAKE.fullmatch(key):
            found.append(at)
        if key not in MAPS_OF_NAMES or not isinstance(value, dict):
            found += wrong_keys(value, at)
    return found


def check_output(arguments: tuple[str, ...], output: str) -> None:
    """Check the standard output of a command line with --json; text that is no JSON is another test's subject."""
    if "--json" not in arguments or arguments[:2] in FOREIGN:
        return
    for line in output.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        wrong = sorted(set(wrong_keys(document)))
        assert not wrong, f"aerobee {' '.join(arguments)}: keys that are not in snake_case: {wrong}"
