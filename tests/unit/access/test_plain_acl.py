"""ACL 1.0: what the files say."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from aerobee.access.keepers import AccountKeeper
from aerobee.access.plain_acl import plain_acl
from aerobee.errors import ConfigError, RemoteError
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.signature import Credentials

# The file that RocketMQ's distribution brings, with one account more.
FILE = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""
KEEPER = AccountKeeper(plain_acl([("plain_acl.yml", yaml.safe_load(FILE))]), lambda: "c")
SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE


def asked(
    code: int, key: str | None = "RocketMQ", secret: str = "12345678", host: str = "10.1.1.1", **ext: str
) -> str:
    """What is said: the access key, or the refusal."""
    request = RemotingCommand(code, dict(ext))
    if key is not None:
        Credentials(key, secret).sign(request)
    try:
        return KEEPER.check(request, host)
    except RemoteError as refusal:
        return (refusal.remark or "") if refusal.code == 16 else "another code"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (asked(SEND, b="topicB"), "RocketMQ"),
        (asked(SEND, b="topicA"), "No default permission for Topic:topicA"),
        (asked(SEND, b="topicC"), "No default permission for Topic:topicC"),
        (asked(SEND, b="unknown"), "No default permission"),
        (asked(SEND, b="RMQ_SYS_TRACE_TOPIC"), "RocketMQ"),
        (asked(PULL, topic="topicC", consumerGroup="groupC"), "RocketMQ"),
        (asked(PULL, topic="topicC", consumerGroup="any"), "RocketMQ"),
        (asked(PULL, topic="topicC", consumerGroup="groupA"), "No default permission for Group:groupA"),
        (asked(SEND, secret="wrong secret", b="topicB"), "Check signature failed"),
        (asked(SEND, key="nobody1", b="topicB"), "No acl config for nobody1"),
        (asked(SEND, key=None, b="topicB"), "no accessKey is configured"),
        (asked(SEND, key=None, host="192.168.0.7", b="topicA"), ""),
        (asked(RequestCode.UPDATE_AND_CREATE_TOPIC, topic="topicB"), "Need admin permission"),
        (asked(RequestCode.UPDATE_AND_CREATE_TOPIC, key="rocketmq2", topic="topicB"), "rocketmq2"),
        (asked(SEND, key="rocketmq2", secret="whatever", host="192.168.1.9", b="x"), "rocketmq2"),
        (asked(SEND, key="rocketmq2", secret="whatever", b="x"), "Check signature failed"),
        # What brokers and controllers say to each other and to NameServers.
        (asked(RequestCode.REGISTER_BROKER, brokerName="b"), "No default permission for Cluster:c"),
        (asked(RequestCode.UNREGISTER_BROKER, brokerName="b"), "No default permission for Cluster:c"),
        (asked(RequestCode.EXCHANGE_BROKER_HA_INFO), "No default permission for Cluster:c"),
        (asked(RequestCode.REGISTER_BROKER, key="rocketmq2", brokerName="b"), "rocketmq2"),
        (asked(99_999), "No default permission for Cluster:c"),
        # What is neither sent nor consumed takes the signature alone.
        (asked(RequestCode.GET_MAX_OFFSET, topic="topicC"), "RocketMQ"),
    ],
)
def test_decisions(said: str, found: str) -> None:
    assert said.startswith(found)
    assert bool(said) == bool(found)


def test_the_first_file_counts() -> None:
    first = {"accounts": [{"accessKey": "samekey1", "secretKey": "secret-one", "admin": True}]}
    second = {"accounts": [{"accessKey": "samekey1", "secretKey": "secret-two"}]}
    assert plain_acl([("a", first), ("b", second)]).accounts["samekey1"].secret_key == "secret-one"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([1], "no table"),
        ({"accounts": {"a": 1}}, "accounts is not a list"),
        ({"accounts": [{"accessKey": "short", "secretKey": "12345678"}]}, "account 1: accessKey"),
        ({"accounts": [{"accessKey": "longenough"}]}, "account 1: secretKey"),
        (
            {"accounts": [{"accessKey": "longenough", "secretKey": "12345678", "admn": True}]},
            "unknown key admn",
        ),
        (
            {"accounts": [{"accessKey": "longenough", "secretKey": "12345678", "topicPerms": ["t"]}]},
            "topicPerms holds 't'",
        ),
        (
            {"accounts": [{"accessKey": "longenough", "secretKey": "12345678", "topicPerms": ["t=PUSH"]}]},
            "'PUSH' is none of",
        ),
        ({"globalWhiteRemoteAddresses": ["ten"]}, "'ten' is no address"),
    ],
)
def test_what_is_wrong_is_named(document: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plain_acl([("plain_acl.yml", document)])
