"""quick_init changes how long an object takes to make, and nothing else."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from aerobee.errors import UsageError
from aerobee.message import Message, MessageQueue
from aerobee.quick_init import quick_init


@quick_init
@dataclass(frozen=True, slots=True)
class Point:
    """A class with every kind of default."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.x < 0:
            raise UsageError("x is negative")


@dataclass(frozen=True, slots=True)
class Point3(Point):
    """A class derived from it, with a field more."""

    z: int = 3


class Named(Point):
    """A class derived from it without slots."""


def test_arguments_and_defaults_are_those_of_the_dataclass() -> None:
    assert (Point(1).x, Point(1).y, Point(1).tags) == (1, 2, [])
    assert Point(y=5, x=4) == Point(4, 5, [])
    assert Point(1).tags is not Point(1).tags
    assert repr(Point(1)) == "Point(x=1, y=2, tags=[])"
    assert list(inspect.signature(Point).parameters) == ["x", "y", "tags"]
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="w"):
        Point(1, w=2)  # type: ignore[call-arg]


def test_objects_are_frozen_and_of_their_class() -> None:
    for made in (Point(1), MessageQueue("T", "b", 0), Message("T", b"")):
        assert type(made).__name__ in ("Point", "MessageQueue", "Message")
        assert not hasattr(made, "__dict__")
        with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
            made.x = 9  # type: ignore[union-attr, misc]
    with pytest.raises(FrozenInstanceError):
        Message("T", b"").topic = "U"  # type: ignore[misc]


def test_post_init_still_checks() -> None:
    with pytest.raises(UsageError):
        Point(-1)
    with pytest.raises(UsageError):
        Message("no blanks", b"")


def test_subclasses_copies_and_pickles_work() -> None:
    assert Point3(1, z=7) == Point3(1, 2, [], 7)
    named = Named(3)
    assert (type(named), named.x, named.tags) == (Named, 3, [])
    message = Message("T", b"body", tag="a", keys=("k",), properties={"p": "v"})
    assert replace(message, tag="b").tag == "b"
    assert copy.copy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert {MessageQueue("T", "b", 1): 1}[MessageQueue("T", "b", 1)] == 1
    assert MessageQueue("T", "a", 9) < MessageQueue("T", "b", 0)


def test_keyword_only_fields_are_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Given:
        x: int

    with pytest.raises(TypeError, match="keyword-only"):
        quick_init(Given)
