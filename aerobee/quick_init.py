"""Frozen dataclasses that are made often: an __init__ in a quarter of the time.

The __init__ that dataclasses write for a frozen class calls object.__setattr__ for each field, 0.1 us apiece, which is
most of what making a Message or a SendResult costs. This one turns the new object for a moment into one of an open class
that has the same slots and is not frozen, stores the fields plainly, and turns it back before other code can see it.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


_open_counterparts: dict[type, type] = {}


def open_counterpart(cls: type) -> type:
    """The class with the slots of `cls`, which quick_init decorated, that is not frozen.

    Who makes one, stores every field and then assigns `__class__` has made an object of `cls`.
    """
    return _open_counterparts[cls]


def quick_init(cls: type[T]) -> type[T]:
    """Decorate a dataclass(frozen=True, slots=True). Arguments, defaults and __post_init__ stay as they are.

    A subclass keeps the __init__ that dataclasses wrote. Raises TypeError for a class with keyword-only fields.
    """
    members = fields(cls)  # type: ignore[arg-type]
    if any(member.kw_only or not member.init for member in members):
        raise TypeError(f"quick_init takes no class with keyword-only fields: {cls.__name__}")
    names = tuple(member.name for member in members)
    made_by_dataclass: Any = cls.__init__
    backend = _open_counterparts[cls] = type(f"_Open{cls.__name__}", (), {"__slots__": names})
    scope: dict[str, Any] = {
        "_cls": cls,
        "_open": backend,
        "_set": object.__setattr__,
        "_plain": made_by_dataclass,
        "_missing": MISSING,
    }
    parameters, stores = [], []
    for member in members:
        name, value = member.name, member.name
        if member.default_factory is not MISSING:
            scope[f"_factory_{name}"] = member.default_factory
            parameters.append(f"{name}=_missing")
            value = f"_factory_{name}() if {name} is _missing else {name}"
        elif member.default is not MISSING:
            scope[f"_default_{name}"] = member.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        stores.append(f"    self.{name} = {value}")
    # Keyword arguments to the plain one: a factory's parameter has a default of another kind there.
    given = ", ".join(
        f"{name}={value.partition(' = ')[2]}" for name, value in zip(names, stores, strict=True)
    )
    lines = [
        f"def __init__(self, {', '.join(parameters)}):",
        "    if type(self) is not _cls:",
        f"        return _plain(self, {given})",
        "    _set(self, '__class__', _open)",
        *stores,
        "    self.__class__ = _cls",
        *(["    self.__post_init__()"] if hasattr(cls, "__post_init__") else []),
    ]
    exec("\n".join(lines), scope)
    made = scope["__init__"]
    made.__annotations__ = made_by_dataclass.__annotations__
    made.__qualname__ = made_by_dataclass.__qualname__
    made.__module__ = cls.__module__
    setattr(cls, "__init__", made)  # noqa: B010  mypy refuses the plain assignment
    return cls
