"""Allowed source addresses of requests: the address patterns of ACL 1.0 and 2.0. Core.

ACL 2.0 names addresses and networks (`10.0.0.0/8`). ACL 1.0 has other patterns (RemoteAddressStrategyFactory, RocketMQ):
`*`, `10.0.0.1`, `10.0.0.1,10.0.0.2`, `10.0.0.{1,2}`, `10.0.1-20.*`, `10.0.*.*`.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Callable

from aerobee.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Matches = Callable[[str], bool]
_RANGE = re.compile(r"(\d{1,3})-(\d{1,3})\Z")


def address_of(host: str) -> Address | None:
    """The address, an IPv4 one where IPv6 carries it; None for an invalid address."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def networks_of(text: str, key: str) -> Matches:
    """Read addresses and networks with ; or , between them; an empty text has none. Raises ConfigError, which names `key`."""
    try:
        found = [network_of(piece) for piece in text.replace(",", ";").split(";") if piece.strip()]
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from None
    return lambda host: any(matches(host) for matches in found)


def network_of(text: str) -> Matches:
    """Read an address or a network in CIDR form. Raises ConfigError."""
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as error:
        raise ConfigError(f"{text!r} is neither an address nor a network: {error}") from None

    def matches(host: str) -> bool:
        found = address_of(host)
        return found is not None and found.version == network.version and found in network

    return matches


def pattern_of(text: str) -> Matches:
    """Parse a pattern of ACL 1.0. Raises ConfigError for an invalid pattern."""
    text = text.strip()
    if text in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return lambda host: True
    if "{" in text:
        head, _, rest = text.partition("{")
        last, closed, nothing = rest.partition("}")
        if nothing or not last or not closed:
            raise ConfigError(f"white address {text!r}: the {{…}} stands last, as in 10.0.0.{{1,2}}")
        return _any_of([_single(head + each.strip()) for each in last.split(",")])
    if "," in text:
        return _any_of([_single(each) for each in text.split(",")])
    if "*" in text or "-" in text:
        return _ranges(text)
    return _single(text)


def _any_of(matchers: list[Matches]) -> Matches:
    return lambda host: any(matches(host) for matches in matchers)


def _single(text: str) -> Matches:
    wanted = address_of(text.strip())
    if wanted is None:
        raise ConfigError(f"white address {text!r} is no address")
    return lambda host: address_of(host) == wanted


def _ranges(text: str) -> Matches:
    separator = ":" if ":" in text else "."
    pieces, base = text.split(separator), 16 if separator == ":" else 10
    count = 8 if separator == ":" else 4
    ranges: list[tuple[int, int]] = []
    for piece in itertools.islice(pieces, count):
        found = (
            _RANGE.match(piece) if base == 10 else re.match(r"([0-9a-fA-F]{1,4})-([0-9a-fA-F]{1,4})\Z", piece)
        )
        try:
            if piece == "*":
                ranges.append((0, (1 << 16 if base == 16 else 1 << 8) - 1))
            elif found is not None:
                ranges.append((int(found[1], base), int(found[2], base)))
            else:
                ranges.append((int(piece, base),) * 2)
        except ValueError:
            raise ConfigError(f"white address {text!r}: {piece!r} is no number, range or *") from None
    if len(pieces) != count or any(low > high for low, high in ranges):
        raise ConfigError(
            f"white address {text!r} must have {count} parts, and each range must end after it begins"
        )

    def matches(host: str) -> bool:
        found = address_of(host)
        if found is None or (found.version == 6) != (base == 16):
            return False
        parts = [int(part, base) for part in found.exploded.split(separator)]
        return all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))

    return matches
