"""Options of publishers, and those that a command takes from them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from faststream.response import PublishType, Response

from aerobee.contrib.faststream.response import AerobeePublishCommand, AerobeeResponse, SendOptions
from aerobee.errors import UsageError

PUBLISHER = SendOptions(tag="t", keys=("k",), message_group="g", delay=5.0, priority=None)


def test_command_takes_what_it_leaves_open_from_the_publisher() -> None:
    assert SendOptions().over(PUBLISHER) == PUBLISHER
    at = datetime(2030, 1, 1, tzinfo=UTC)
    found = SendOptions(tag="own", deliver_at=at).over(PUBLISHER)
    assert found == SendOptions(tag="own", keys=("k",), message_group="g", deliver_at=at)


def test_response_keeps_its_options_and_others_get_none() -> None:
    command = AerobeePublishCommand.from_cmd(
        AerobeeResponse([1, 2], tag="t", delay=1).as_publish_command(), batch=True
    )
    assert command.batch_bodies == (1, 2)
    assert command.options == SendOptions(tag="t", delay=1)
    assert AerobeePublishCommand.from_cmd(Response(1).as_publish_command()).options == SendOptions()


def test_message_has_properties_of_headers_and_ids() -> None:
    command = AerobeePublishCommand(
        b"",
        topic="orders",
        headers={"try": 1},
        correlation_id="c",
        reply_to="answers",
        options=SendOptions(tag="t", keys=("a", "b"), delay=2),
        _publish_type=PublishType.PUBLISH,
    )
    message = command.message(b"x", "text/plain")
    assert message.properties == {
        "try": "1",
        "content-type": "text/plain",
        "correlation_id": "c",
        "reply_to": "answers",
    }
    assert (message.tag, message.keys, message.deliver_after) == ("t", ("a", "b"), 2)
    command.headers["empty"] = ""
    with pytest.raises(UsageError, match="empty"):
        command.message(b"x", None)
