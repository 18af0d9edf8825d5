"""Required durability of a message before its acknowledgement, if a send or its topic requests more or less than the
broker's settings. Core.

    stored               the broker has it: survives a crash of the process
    flushed              its disk has it: survives power loss
    replicated           two copies at least have it: survives the loss of the machine
    flushed+replicated   both

A send requests it by the property ACK_LEVEL of its message, a topic by its attribute ack.level; the send counts more. For a batch
its topic's attribute counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aerobee.message import ACK_LEVELS
from aerobee.property_names import ACK_LEVEL
from aerobee.remoting.protocol import ACK_LEVEL_ATTRIBUTE


@dataclass(frozen=True, slots=True)
class AckLevel:
    """Conditions of an acknowledgement."""

    name: str
    is_flushed: bool
    is_replicated: bool


LEVELS: Mapping[str, AckLevel] = {
    name: AckLevel(name, "flushed" in name, "replicated" in name) for name in ACK_LEVELS
}


def wanted_level(properties: Mapping[str, str], attributes: Mapping[str, str]) -> AckLevel | None:
    """The level of a message; None: the broker's settings apply. Raises ValueError for an unknown name."""
    name = properties.get(ACK_LEVEL)
    if name is None:
        return LEVELS.get(attributes.get(ACK_LEVEL_ATTRIBUTE, ""))
    level = LEVELS.get(name)
    if level is None:
        raise ValueError(f"{ACK_LEVEL} is {name!r}, must be one of {', '.join(LEVELS)}")
    return level
