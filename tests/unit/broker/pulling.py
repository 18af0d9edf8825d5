"""A broker's parts that serve pulls."""

from __future__ import annotations

from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.protocol import PULL_SUBSCRIPTION
from tests.fakes import FakePeer
from tests.unit.broker.sending import Sending, send_frame


class Pulling(Sending):
    """Sending, and pulls of it."""

    def send(self, count: int = 1, tag: str = "", queue: str = "1") -> None:
        for _ in range(count):
            properties = "UNIQ_KEY\x01U\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
            frame = send_frame(queue=queue, properties=properties)
            assert self.fast_path.burst(FakePeer(), frame, 0)  # type: ignore[arg-type]

    def pull(self, connection: FakePeer, request: RemotingCommand) -> RemotingCommand | None:
        reply = self.pulls.pull(connection, request)  # type: ignore[arg-type]
        assert reply is None or isinstance(reply, RemotingCommand)
        return reply


def pull_request(
    offset: int = 0, *, flags: int = PULL_SUBSCRIPTION, opaque: int = 9, **fields: str
) -> RemotingCommand:
    ext = {
        "consumerGroup": "group", "topic": "TopicNormal", "queueId": "1", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": str(flags), "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return RemotingCommand(11, {**ext, **fields}, opaque=opaque)
