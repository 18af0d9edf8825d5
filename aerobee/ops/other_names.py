"""What users of mqadmin and of Kafka's tools type, and how it is called here. Core."""

from __future__ import annotations

from collections.abc import Mapping

COMMANDS: Mapping[str, str] = {
    "produce": "send",
    "producer": "send",
    "publish": "send",
    "consumer": "consume",
    "subscribe": "consume",
    "tail": "consume",
    "list": "topic list",
    "topics": "topic list",
    "groups": "group list",
    "status": "doctor",
    "start": "up",
    # mqadmin
    "topicList": "topic list",
    "updateTopic": "topic create",
    "deleteTopic": "topic delete",
    "topicRoute": "topic describe",
    "topicStatus": "topic stats",
    "clusterList": "cluster list",
    "brokerStatus": "cluster describe",
    "consumerProgress": "group lag",
    "consumerConnection": "group describe",
    "consumerStatus": "group describe",
    "deleteSubGroup": "group delete",
    "setConsumeMode": "group mode",
    "resetOffsetByTime": "offset reset",
    "skipAccumulatedMessage": "offset skip",
    "cloneGroupOffset": "offset clone",
    "queryMsgById": "message id",
    "queryMsgByKey": "message key",
    "queryMsgByUniqueKey": "message unique-key",
    "queryMsgByOffset": "message offset",
    "printMsg": "message time",
    "queryMsgTraceById": "trace",
    "sendMessage": "send",
    "consumeMessage": "consume",
    "getControllerMetaData": "ha status",
    "electMaster": "ha elect",
    "cleanBrokerMetadata": "ha forget",
}
OPTIONS: Mapping[str, str] = {
    "--from-beginning": "--from first",
    "--bootstrap-server": "--nameserver",
    "--bootstrap-servers": "--nameserver",
    "--broker-list": "--nameserver",
    "--namesrv": "--nameserver",
    "--namesrvAddr": "--nameserver",
    "--max-messages": "--count",
    "--partition": "--queue",
    "--partitions": "--queues",
    "--offset": "--from offset:N",
    "--consumer-property": "--group",
}
WORDS: Mapping[str, str] = {
    "--topic": "the topic stands behind the command, without an option",
    "--message": "the text stands behind the topic, without an option",
    "--body": "the text stands behind the topic, without an option",
}


def own_command(name: str) -> str:
    """What the command of another tool is called here; "" for one that is not known."""
    return COMMANDS.get(name, "")


def own_option(option: str, taken: frozenset[str], *, before_command: bool) -> str:
    """What to write in place of an option that a command does not take; "" when nothing better than --help is known.

    `taken` are the options that it takes; `before_command` says that no command was named before the option.
    """
    if before_command and option in ("-n", "--nameserver", "--json", "-g", "--group", "--topic", "-t"):
        return "options of a command stand behind it: `aerobee topic list --nameserver HOST:PORT`"
    own = OPTIONS.get(option, "")
    if own.split(" ")[0] in taken:
        return f"here it is {own}"
    return "" if before_command else WORDS.get(option, "")
