"""Who may do what by ACL 2.0: order of entries, kinds of resources, what is kept and read again."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee.access.policies import (
    Acl,
    Decision,
    PolicyEntry,
    PolicyType,
    acl_from_document,
    acl_from_info,
)
from aerobee.access.resource import Action, every, parse_action, parse_resource, topic
from aerobee.access.resource import ResourceType as Kind
from aerobee.errors import UsageError

PUB, SUB = frozenset({Action.PUB}), frozenset({Action.SUB})


def acl(*sentences: str, default: tuple[str, ...] = ()) -> Acl:
    """`Allow Pub,Sub Topic:orders* 10.0.0.0/8` and so on."""

    def entry(sentence: str) -> PolicyEntry:
        decision, actions, resource, *sources = sentence.split()
        return PolicyEntry(
            parse_resource(resource),
            frozenset(parse_action(word) for word in actions.split(",")),
            Decision[decision.upper()],
            tuple(sources),
        )

    made = Acl("User:alice")
    made.merge(PolicyType.CUSTOM, [entry(each) for each in sentences])
    made.merge(PolicyType.DEFAULT, [entry(each) for each in default])
    return made


@pytest.mark.parametrize(
    ("sentences", "name", "actions", "host", "decision"),
    [
        ((), "orders", PUB, "10.0.0.1", None),
        (("Allow Pub Topic:orders",), "orders", PUB, "10.0.0.1", Decision.ALLOW),
        (("Allow Pub Topic:orders",), "orders", SUB, "10.0.0.1", None),
        (("Allow Pub Topic:orders",), "orders2", PUB, "10.0.0.1", None),
        (("Allow All Topic:orders*",), "orders2", SUB, "10.0.0.1", Decision.ALLOW),
        (("Allow All *",), "orders2", SUB, "10.0.0.1", Decision.ALLOW),
        (("Allow Pub Group:orders",), "orders", PUB, "10.0.0.1", None),
        # the nearest decides
        (("Allow Pub Topic:*", "Deny Pub Topic:orders"), "orders", PUB, "10.0.0.1", Decision.DENY),
        (("Deny Pub Topic:*", "Allow Pub Topic:orders"), "orders", PUB, "10.0.0.1", Decision.ALLOW),
        (("Deny Pub Topic:or*", "Allow Pub Topic:order*"), "orders", PUB, "10.0.0.1", Decision.ALLOW),
        (("Allow Pub *", "Deny Pub Topic:*"), "orders", PUB, "10.0.0.1", Decision.DENY),
        # one of several actions is enough
        (("Allow Sub Topic:orders",), "orders", PUB | SUB, "10.0.0.1", Decision.ALLOW),
        # from where
        (("Allow Pub Topic:orders 10.0.0.0/8",), "orders", PUB, "10.9.9.9", Decision.ALLOW),
        (("Allow Pub Topic:orders 10.0.0.0/8",), "orders", PUB, "11.9.9.9", None),
        (("Allow Pub Topic:orders ::1",), "orders", PUB, "::1", Decision.ALLOW),
        (("Allow Pub Topic:orders 10.0.0.1",), "orders", PUB, "::ffff:10.0.0.1", Decision.ALLOW),
        (("Allow Pub Topic:orders 10.0.0.1",), "orders", PUB, "no address", None),
    ],
)
def test_decisions(
    sentences: tuple[str, ...], name: str, actions: frozenset[Action], host: str, decision: Decision | None
) -> None:
    assert acl(*sentences).decide(topic(name), actions, host) is decision


def test_the_default_policy_speaks_where_the_custom_one_is_silent() -> None:
    both = acl("Deny Pub Topic:orders", default=("Allow Pub,Sub Topic:*",))
    assert both.decide(topic("orders"), PUB, "::1") is Decision.DENY
    assert both.decide(topic("bills"), PUB, "::1") is Decision.ALLOW
    assert both.decide(topic("orders"), SUB, "::1") is Decision.ALLOW


def test_all_of_a_kind_is_more_than_each_that_is_named() -> None:
    assert acl("Allow List Topic:orders*").decide(every(Kind.TOPIC), frozenset({Action.LIST}), "::1") is None
    assert (
        acl("Allow List Topic:*").decide(every(Kind.TOPIC), frozenset({Action.LIST}), "::1") is Decision.ALLOW
    )


def test_what_rocketmq_wrote_is_read_and_written_again() -> None:
    """The value that a broker 5.5.0 kept for `createAcl -s User:alice -r 'Topic:orders*,Group:g1' -a Pub,Sub -d Allow -i 127.0.0.1`."""
    entries: list[dict[str, Any]] = [
        {
            "actions": [3, 4],
            "decision": 1,
            "environment": {"sourceIps": ["127.0.0.1"]},
            "resource": {"resourceName": "orders", "resourcePattern": 3, "resourceType": 4},
        },
        {
            "actions": [3, 4],
            "decision": 1,
            "environment": {"sourceIps": ["127.0.0.1"]},
            "resource": {"resourceName": "g1", "resourcePattern": 2, "resourceType": 5},
        },
    ]
    document = {
        "policies": [{"entries": entries, "policyType": 1}],
        "subject": {"subjectType": 1, "username": "alice"},
    }
    read = acl_from_document(document, "User:alice")
    assert read.to_document() == document
    assert read.decide(topic("orders-eu"), PUB, "127.0.0.1") is Decision.ALLOW
    assert acl_from_info(read.to_info()).to_document() == document


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"resource": "Topic:"}, "name has 1 to"),
        ({"resource": "orders"}, "is not `\\*` or Topic:name"),
        ({"resource": "Any:x"}, "is not"),
        ({"actions": ["Fly"]}, "'Fly' is unknown"),
        ({"actions": ["Any"]}, "'Any' is unknown"),
        ({"actions": []}, "names no actions"),
        ({"decision": "Perhaps"}, "neither Allow nor Deny"),
        ({"sourceIps": ["10.0.0.300"]}, "neither an address nor a network"),
        ({"sourceIps": "10.0.0.1"}, "not a list"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    entry = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"} | change
    with pytest.raises(UsageError, match=said):
        acl_from_info({"subject": "User:alice", "policies": [{"entries": [entry]}]})


@pytest.mark.parametrize("subject", ["", "alice", "User:", "Group:x", "User:" + "x" * 300])
def test_a_subject_is_a_user(subject: str) -> None:
    with pytest.raises(UsageError, match="subject"):
        acl_from_info({"subject": subject, "policies": []})


def test_one_resource_is_taken_back() -> None:
    made = acl("Allow Pub Topic:orders", "Allow Pub Topic:bills")
    assert made.remove(PolicyType.CUSTOM, topic("orders"))
    assert made.decide(topic("orders"), PUB, "::1") is None
    assert made.decide(topic("bills"), PUB, "::1") is Decision.ALLOW
