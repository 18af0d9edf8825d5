"""Hints fit the error, not only its class."""

from __future__ import annotations

from aerobee.errors import NoPermission, RemoteError, RequestNotSupported, remote_error
from aerobee.ops.terminal.failure import explain
from aerobee.remoting.codes import ResponseCode


def refusal(code: ResponseCode, remark: str, request: str) -> RemoteError:
    return remote_error(code.value, remark, address="127.0.0.1:9878", request=request)


def test_a_setting_that_refuses_is_no_matter_of_keys() -> None:
    remark = "recall failed, it is not enabled: set recallMessageEnable=true at broker broker-a"
    error = refusal(ResponseCode.NO_PERMISSION, remark, "RECALL_MESSAGE")
    assert isinstance(error, NoPermission)
    assert explain(error).advice == ""
    other = refusal(ResponseCode.NO_PERMISSION, "no permission for topic orders", "SEND_MESSAGE_V2")
    assert "AEROBEE_ACCESS_KEY" in explain(other).advice


def test_a_server_that_is_no_controller_is_named_so() -> None:
    error = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported", "CONTROLLER_GET_METADATA_INFO")
    assert isinstance(error, RequestNotSupported)
    assert "--controller" in explain(error).advice
    other = refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported", "GET_BROKER_CLUSTER_INFO")
    assert "-n takes" in explain(other).advice
