"""Typed reads of one parsed JSON object, for the from_dict() of every body.

Absent and null are the same and give the default. Integers and booleans may come as text (C++ writes some so).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aerobee.errors import MalformedFrame

Fields = Mapping[str, Any]
INT64_MAX = (1 << 63) - 1


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return the value when it is an object. Raises MalformedFrame."""
    if not isinstance(value, dict):
        raise MalformedFrame(f"{what} is {type(value).__name__}, must be a JSON object")
    return value


def as_integer(value: object, what: str) -> int:
    """Return a number, or text of digits, as a 64-bit integer. Raises MalformedFrame."""
    if type(value) is int and -INT64_MAX - 1 <= value <= INT64_MAX:  # nearly all are
        return value
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    digits = isinstance(value, str) and len(value) <= 20 and value.isascii()
    if whole or (digits and str(value).removeprefix("-").isdigit()):
        value = int(str(value) if digits else value)  # type: ignore[call-overload]
    if isinstance(value, int) and -INT64_MAX - 1 <= value <= INT64_MAX:
        return value
    raise MalformedFrame(f"{what} is {str(value)[:40]!r}, must be a 64-bit integer")


def text(fields: Fields, name: str, default: str = "") -> str:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise MalformedFrame(f"{name} is {type(value).__name__}, must be text")


def optional_text(fields: Fields, name: str) -> str | None:
    return None if fields.get(name) is None else text(fields, name)


def integer(fields: Fields, name: str, default: int = 0) -> int:
    value = fields.get(name)
    return default if value is None or value == "" else as_integer(value, name)


def number(fields: Fields, name: str, default: float = 0.0) -> float:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError as error:
            raise MalformedFrame(f"{name} is too large") from error
    if isinstance(value, str) and len(value) <= 40:
        try:
            return float(value)
        except ValueError as error:
            raise MalformedFrame(f"{name} is {value!r}, must be a number") from error
    raise MalformedFrame(f"{name} is {type(value).__name__}, must be a number")


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool | int):
        return bool(value)
    if isinstance(value, str):
        return value == "1" or value.lower() == "true"
    raise MalformedFrame(f"{name} is {type(value).__name__}, must be a boolean")


def mapping(fields: Fields, name: str) -> dict[str, Any]:
    """Return an object, {} when absent."""
    value = fields.get(name)
    return {} if value is None else as_object(value, name)


def items(fields: Fields, name: str) -> list[Any]:
    """Return an array, [] when absent."""
    value = fields.get(name)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    raise MalformedFrame(f"{name} is {type(value).__name__}, must be an array")


def objects(fields: Fields, name: str) -> list[dict[str, Any]]:
    """Return an array of objects, [] when absent."""
    return [as_object(item, f"an item of {name}") for item in items(fields, name)]


def texts(fields: Fields, name: str) -> tuple[str, ...]:
    """Return an array of texts, () when absent."""
    found = items(fields, name)
    for item in found:
        if not isinstance(item, str):
            raise MalformedFrame(f"an item of {name} is {type(item).__name__}, must be text")
    return tuple(found)


def text_map(fields: Fields, name: str) -> dict[str, str]:
    """Return an object whose values are texts, {} when absent; null values are left out."""
    found = mapping(fields, name)
    return {key: text(found, key) for key, value in found.items() if value is not None}


def enum_name(fields: Fields, name: str, names: tuple[str, ...], default: str) -> str:
    """Return an enum's name; the wire has a name (Java, Go) or an ordinal (C++). Raises MalformedFrame."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, str) and not value.isdigit():
        if value in names:
            return value
    else:
        ordinal = as_integer(value, name)
        if 0 <= ordinal < len(names):
            return names[ordinal]
    raise MalformedFrame(f"{name} is {str(value)[:60]!r}, must be one of {', '.join(names)}")


def without_none(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the fields that are None, as RocketMQ writes."""
    return {name: value for name, value in fields.items() if value is not None}
