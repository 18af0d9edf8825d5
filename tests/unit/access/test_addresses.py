"""Address patterns of ACL 1.0."""

from __future__ import annotations

import pytest

from aerobee.access.addresses import pattern_of
from aerobee.errors import ConfigError
from aerobee.host_port import is_loopback


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["10.0.0.1", "::1"], []),
        ("10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.2", "absent"]),
        ("10.0.0.1, 10.0.0.3", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
        ("10.0.0.{1,20}", ["10.0.0.1", "10.0.0.20"], ["10.0.0.2"]),
        ("10.0.1-20.*", ["10.0.1.0", "10.0.20.255"], ["10.0.0.1", "10.0.21.1", "11.0.2.2"]),
        ("10.0.*.*", ["10.0.3.4"], ["10.1.3.4", "::1"]),
        ("1050:*:*:*:5:*:300c:326a-326f", ["1050::5:600:300c:326b"], ["1050::5:600:300c:3270", "10.0.0.1"]),
    ],
)
def test_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    matches = pattern_of(pattern)
    assert [host for host in inside if not matches(host)] == []
    assert [host for host in outside if matches(host)] == []


@pytest.mark.parametrize(
    "pattern", ["10.0.0", "10.0.0.{1", "10.0.{1,2}.3", "10.0.20-1.*", "10.0.x.*", "ten", ""]
)
def test_what_cannot_be_read_is_named(pattern: str) -> None:
    with pytest.raises(ConfigError):
        pattern_of(pattern)


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]))
    assert not any(map(is_loopback, ["10.0.0.1", "", "localhost.example.com"]))
