"""Every public class, field and method of the client has its text where an editor shows it: in a docstring."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

import pytest

import aerobee
import aerobee.client
from aerobee import errors
from aerobee.client import serialize
from aerobee.client.base import results
from aerobee.client.consumer.dead_letter import DeadLetter
from aerobee.client.session.contexts import Cluster, Context


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
