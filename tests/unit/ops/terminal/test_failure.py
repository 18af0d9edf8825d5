import errno
from pathlib import Path

import pytest

from aerobee import errors
from aerobee.ops.terminal.failure import ExitCode, NotFound, PortTaken, explain, one_sentence

OPERATIONS = Path(__file__).parents[4] / "docs" / "operations.md"


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (errors.ConnectFailed("no connection", address="127.0.0.1:1"), ExitCode.UNREACHABLE),
        (errors.RequestTimeout("no answer"), ExitCode.UNREACHABLE),
        (errors.MalformedFrame("garbage"), ExitCode.UNREACHABLE),
        (errors.RouteError("orders"), ExitCode.NOT_FOUND),
        (errors.TopicNotExist(17, "no topic"), ExitCode.NOT_FOUND),
        (NotFound("no such topic"), ExitCode.NOT_FOUND),
        (errors.NoPermission(16, "no"), ExitCode.FORBIDDEN),
        (errors.MessageIllegal(13, "too large"), ExitCode.FORBIDDEN),
        (errors.ConfigError("broker.conf:2: listenPort"), ExitCode.USAGE),
        (errors.StoreLocked("open in another broker"), ExitCode.LOCAL),
        (PortTaken("taken"), ExitCode.LOCAL),
        (OSError(errno.ENOSPC, "No space left on device", "/data"), ExitCode.LOCAL),
        (errors.SystemBusy(2, "busy"), ExitCode.REFUSED),
        (errors.RemoteError(999, "odd"), ExitCode.REFUSED),
        (ZeroDivisionError("x"), ExitCode.INTERNAL),
    ],
)
def test_each_failure_has_its_exit_code(error: Exception, exit_code: ExitCode) -> None:
    assert explain(error).exit_code == exit_code


def test_failure_of_a_send_is_explained_by_its_last_try() -> None:
    cause = errors.ConnectFailed("no connection to 127.0.0.1:10911", address="127.0.0.1:10911")
    failure = explain(errors.SendFailed("not stored in 3 tries", (("broker-a", cause),)))
    assert failure.exit_code == ExitCode.UNREACHABLE
    assert failure.kind == "SendFailed"
    assert failure.advice


def test_a_refusal_that_names_the_granting_command_has_no_other_advice() -> None:
    remark = (
        "User:a has no permission. An administrator grants it with `aerobee acl allow a Topic:t --action Pub`"
    )
    assert explain(errors.NoPermission(16, remark)).advice == ""
    assert "AEROBEE_ACCESS_KEY" in explain(errors.NoPermission(16, "no")).advice


def test_failure_inside_a_group_of_exceptions_is_found() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [errors.TopicNotExist(17, "no")])])
    assert explain(group).exit_code == ExitCode.NOT_FOUND


def test_json_form_carries_code_and_address() -> None:
    document = explain(errors.NoPermission(16, "no write", address="127.0.0.1:10911")).as_document()
    assert document["error"]["code"] == 16
    assert document["error"]["address"] == "127.0.0.1:10911"
    assert document["error"]["exit_code"] == 5


def test_sentence_is_one_line_without_the_full_stop() -> None:
    assert one_sentence("it broke.\n  badly.") == "it broke. badly"


def test_every_exit_code_is_documented() -> None:
    text = OPERATIONS.read_text(encoding="utf-8")
    for code in ExitCode:
        assert f"\n| {int(code)} | " in text, f"exit code {int(code)} is missing in docs/operations.md"


def test_a_topic_that_may_not_be_written_is_a_matter_of_permission_not_of_existence() -> None:
    failure = explain(errors.NotWritable("orders", "topic orders has no queue that can be written"))
    assert failure.exit_code is ExitCode.FORBIDDEN
    assert "--perm rw" in failure.advice


def test_read_that_was_not_answered_has_no_effect_to_wonder_about() -> None:
    for request, doubtful in (("GET_BROKER_CONFIG (26)", False), ("SEND_MESSAGE (10)", True)):
        lost = errors.ConnectionLost("closed", address="a:1", request=request)
        assert explain(lost).advice.startswith("whether the request took effect is unknown") is doubtful
