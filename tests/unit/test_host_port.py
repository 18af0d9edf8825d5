"""Addresses as text, and that nothing else in the package puts one together or takes one apart."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from aerobee.errors import ConfigError, UsageError
from aerobee.host_port import bare_host, is_loopback, join_address, split_address
from tests.sources import nodes, tree_of

PACKAGE = Path(__file__).resolve().parents[2] / "aerobee"


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("127.0.0.1", "127.0.0.1:9876"),
        ("broker-a.example.org", "broker-a.example.org:9876"),
        ("::1", "[::1]:9876"),
        ("[::1]", "[::1]:9876"),
        ("fe80::1%eth0", "[fe80::1%eth0]:9876"),
    ],
)
def test_an_address_is_joined_and_split(host: str, text: str) -> None:
    assert join_address(host, 9876) == text
    assert split_address(text) == (bare_host(host), 9876)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "9876",
            ":9876",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:99999999999",
            "host:+1",
            "host:١",
        ),
        *("::1:9876", "fe80::1", "[::1]", "[::1]9876", "[host]:1", "[]:1", "[127.0.0.1]:1"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        split_address(text)
    with pytest.raises(ConfigError, match=r"namesrvAddr has"):
        split_address(text, "namesrvAddr")


def test_loopback_hosts_are_known_with_and_without_brackets() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.3.4.5", "::1", "[::1]", "::ffff:127.0.0.1"]))
    assert not any(map(is_loopback, ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.com", "[::]"]))


# A host before a colon, as in f"{host}:{port}": an IPv6 address needs brackets there.
HOST_WORDS = re.compile(r"host|addr|\bip\b|_ip\b|HOST|LOCAL\b|peer\[0\]", re.IGNORECASE)


def joins_by_hand(tree: ast.Module) -> list[int]:
    """Lines with an f-string that has a host and a port with a colon between."""
    found = []
    for node in nodes(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for before, colon, after in zip(node.values, node.values[1:], node.values[2:], strict=False):
            if (
                isinstance(before, ast.FormattedValue)
                and isinstance(colon, ast.Constant)
                and colon.value == ":"
                and isinstance(after, ast.FormattedValue)
                and HOST_WORDS.search(ast.unparse(before.value))
            ):
                found.append(node.lineno)
    return found


def splits_by_hand(tree: ast.Module) -> list[int]:
    """Lines that convert what stands behind the last colon of a text into a number."""
    return [
        node.lineno
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "int"
        and "rpartition(':')" in ast.unparse(node)
    ]


def test_only_host_port_joins_and_splits_addresses() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.name != "host_port.py":
            tree = tree_of(path)
            lines = joins_by_hand(tree) + splits_by_hand(tree)
            wrong += [f"{path.relative_to(PACKAGE)}:{line}" for line in lines]
    assert not wrong, f"use join_address and split_address of aerobee/host_port.py: {wrong}"


def test_a_host_joined_by_hand_is_found() -> None:
    assert joins_by_hand(ast.parse('f"{host}:{port}"')) == [1]
    assert splits_by_hand(ast.parse("int(address.rpartition(':')[2])")) == [1]
