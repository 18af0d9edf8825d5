"""Format of the two small files in which a broker in controller mode stores its id. Core. Source BrokerMetadata,
TempBrokerMetadata (RocketMQ).

    brokerIdentity          cluster#name#id             the id that the controllers gave to this directory, for good
    brokerIdentity-temp     cluster#name#id#checkcode   an id that it has requested; the check code is address;milliseconds

Text without a line break. The second one is written before the request to the controllers, so that a broker that is
killed in between gets the same id again.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.errors import MalformedFrame
from aerobee.remoting.protocol import BROKER_ID_MAX

FILE_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldId:
    """A broker's id within its broker name. `check_code` is "" once the id is final."""

    cluster: str
    name: str
    broker_id: int
    check_code: str = ""

    def encode(self) -> bytes:
        parts = [self.cluster, self.name, str(self.broker_id)]
        if self.check_code:
            parts.append(self.check_code)
        return "#".join(parts).encode()


def decode_held_id(data: bytes, *, is_temporary: bool) -> HeldId:
    """Read what encode() made. Raises MalformedFrame."""
    wanted = 4 if is_temporary else 3
    if len(data) > FILE_BYTES_MAX:
        raise MalformedFrame(f"a broker's identity has {len(data)} bytes, at most {FILE_BYTES_MAX} are read")
    try:
        parts = data.decode("utf-8").strip().split("#")
    except UnicodeDecodeError as error:
        raise MalformedFrame("a broker's identity is no text") from error
    if len(parts) != wanted or not all(parts):
        raise MalformedFrame(f"a broker's identity is {data[:80]!r}, expected {wanted} parts with # between")
    if not (
        parts[2].isascii()
        and parts[2].isdigit()
        and len(parts[2]) <= 10
        and 0 < int(parts[2]) <= BROKER_ID_MAX
    ):
        raise MalformedFrame(f"the id in a broker's identity is {parts[2][:40]!r}")
    return HeldId(
        cluster=parts[0],
        name=parts[1],
        broker_id=int(parts[2]),
        check_code=parts[3] if is_temporary else "",
    )
