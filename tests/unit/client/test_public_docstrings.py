"""Every public class, field and method of the client has its text where an editor shows it: in a docstring."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import aerobee
import aerobee.client
from aerobee import errors
from aerobee.client import serialize
from aerobee.client.base import results
from aerobee.client.base.config import (
    ConsumeFrom,
    ConsumerConfig,
    PullConsumerConfig,
    SimpleConsumerConfig,
)
from aerobee.client.consumer.dead_letter import DeadLetter
from aerobee.client.session.contexts import Cluster, Context
from aerobee.remoting.body.subscription_group import SubscriptionGroupConfig


def public_classes() -> dict[str, type]:
    """The exported classes of aerobee, aerobee.client and its serializers, every result and every error."""
    exported = [
        getattr(package, name) for package in (aerobee, aerobee.client, serialize) for name in package.__all__
    ]
    raised = [
        each
        for module in (errors, results)
        for each in vars(module).values()
        if getattr(each, "__module__", "") == module.__name__
    ]
    returned = (DeadLetter, Context, Cluster)  # by the Admin and by cluster()
    return {each.__qualname__: each for each in (*exported, *raised, *returned) if inspect.isclass(each)}


def has_docstring_after(body: list[ast.stmt], index: int) -> bool:
    """Whether the statement behind a field is a text."""
    following = body[index + 1] if index + 1 < len(body) else None
    return (
        isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
        and isinstance(following.value.value, str)
    )


def field_name(node: ast.stmt) -> str:
    """The public name that a statement of a class body defines as a field, else an empty text."""
    targets = (
        [node.target]
        if isinstance(node, ast.AnnAssign)
        else node.targets
        if isinstance(node, ast.Assign)
        else []
    )
    names = [each.id for each in targets if isinstance(each, ast.Name) and not each.id.startswith("_")]
    return names[0] if names else ""


def without_docstring(source: str, inherited: frozenset[str] = frozenset()) -> Iterator[str]:
    """The class, its public fields and its public methods that have no docstring and inherit none."""
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    if not ast.get_docstring(definition):
        yield definition.name
    for index, node in enumerate(definition.body):
        name = field_name(node)
        if name and not has_docstring_after(definition.body, index) and name not in inherited:
            yield f"{definition.name}.{name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_public = not node.name.startswith("_") and node.name not in inherited
            if is_public and not ast.get_docstring(node):
                yield f"{definition.name}.{node.name}"


@pytest.mark.parametrize("kind", public_classes().values(), ids=lambda kind: kind.__qualname__)
def test_a_public_class_and_its_fields_have_docstrings(kind: type) -> None:
    """What a base class of ours describes needs no second text."""
    inherited = {
        name for base in kind.__mro__[1:-1] if base.__module__.startswith("aerobee") for name in vars(base)
    }
    assert list(without_docstring(inspect.getsource(kind), frozenset(inherited))) == []


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ("    one: int = 1\n    '''One.'''\n    two: int = 2  # a comment", ["Of.two"]),
        ("    one = 1\n    two = 2\n    '''Two.'''", ["Of.one"]),
        ("    def one(self): ...\n    def two(self):\n        '''Two.'''", ["Of.one"]),
        ("    _one: int = 1\n    def _two(self): ...", []),
    ],
)
def test_a_missing_docstring_is_found(body: str, missing: list[str]) -> None:
    assert list(without_docstring(f"class Of:\n    '''A class.'''\n{body}")) == missing


def field_docstrings(kind: type) -> dict[str, str]:
    """The text below each field of a class, on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for node, below in pairwise(definition.body):
        if name := field_name(node):
            assert isinstance(below, ast.Expr)
            found[name] = " ".join(ast.literal_eval(below.value).split())
    return found


@pytest.mark.parametrize(
    ("kind", "name", "default", "says"),
    [
        (ConsumerConfig, "consume_from", ConsumeFrom.LAST, "a new group gets only messages sent after its first start"),
        (PullConsumerConfig, "consume_from", ConsumeFrom.LAST, "a new group gets only messages sent after its first start"),
        (ConsumerConfig, "retry_count_max", -1, "the group's setting `retryMaxTimes` decides, 16 unless"),
        (SimpleConsumerConfig, "retry_count_max", -1, "the group's setting `retryMaxTimes` decides, 16 unless"),
    ],
)  # fmt: skip
def test_a_surprising_default_is_said_in_the_docstring(
    kind: Any, name: str, default: object, says: str
) -> None:
    assert getattr(kind(), name) == default
    assert says in field_docstrings(kind)[name]
    assert SubscriptionGroupConfig("G").retry_max_times == 16


def test_the_surprising_defaults_are_said_by_help() -> None:
    """help() and most editors show the docstring of a class, not those of its fields."""
    shown = " ".join((inspect.getdoc(ConsumerConfig) or "").split())
    assert "`consume_from` is LAST: a new group gets no message that was sent before its first start" in shown
    assert (
        "`retry_count_max` is -1: the group's `retryMaxTimes` at the broker decides, 16 by default" in shown
    )
