"""Commands and options of mqadmin and of Kafka's tools, and their equivalents in `aerobee`. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    # mqadmin; docs/mqadmin.md
    "addBroker": "broker",
    "addWritePerm": "cluster allow-writes",
    "allocateMQ": "topic allocate",
    "brokerConsumeStats": "top",
    "brokerStatus": "cluster describe",
    "checkMsgSendRT": "bench probe",
    "checkRocksdbCqWriteProgress": "store verify",
    "cleanBrokerMetadata": "ha forget",
    "cleanExpiredCQ": "cluster clean",
    "cleanUnusedTopic": "cluster clean",
    "cloneGroupOffset": "offset clone",
    "clusterList": "cluster list",
    "clusterRT": "bench probe",
    "consumeMessage": "consume",
    "consumerConnection": "group describe",
    "consumerProgress": "group lag",
    "consumerStatus": "group describe",
    "copyAcl": "acl copy",
    "copyUser": "user create",
    "createAcl": "acl allow",
    "createUser": "user create",
    "deleteAcl": "acl delete",
    "deleteExpiredCommitLog": "cluster clean",
    "deleteKvConfig": "kv delete",
    "deleteSubGroup": "group delete",
    "deleteTopic": "topic delete",
    "deleteUser": "user delete",
    "dumpCompactionLog": "store verify",
    "electMaster": "ha elect",
    "exportConfigs": "config show",
    "exportMetadata": "cluster export",
    "exportMetadataInRocksDB": "cluster export",
    "exportMetrics": "cluster describe",
    "exportPopRecord": "group pop",
    "getAcl": "acl list",
    "getBrokerConfig": "config show",
    "getBrokerEpoch": "ha epochs",
    "getConsumerConfig": "group describe",
    "getControllerConfig": "config show",
    "getControllerMetaData": "ha status",
    "getNamesrvConfig": "config show",
    "getSyncStateSet": "ha status",
    "getUser": "user list",
    "haStatus": "cluster describe",
    "listAcl": "acl list",
    "listUser": "user list",
    "printMsg": "message time",
    "printMsgByQueue": "message time",
    "producerConnection": "cluster producers",
    "queryCq": "message entries",
    "queryMsgById": "message id",
    "queryMsgByKey": "message key",
    "queryMsgByOffset": "message offset",
    "queryMsgByUniqueKey": "message unique-key",
    "queryMsgTraceById": "trace",
    "removeBroker": "cluster drain",
    "resetOffsetByTime": "offset reset",
    "rocksDBConfigToJson": "cluster export",
    "sendMessage": "send",
    "sendMsgStatus": "bench probe",
    "setConsumeMode": "group mode",
    "skipAccumulatedMessage": "offset skip",
    "startMonitoring": "top",
    "statsAll": "top",
    "switchTimerEngine": "timer stats",
    "topicClusterList": "topic describe",
    "topicList": "topic list",
    "topicRoute": "topic describe",
    "topicStatus": "topic stats",
    "updateAcl": "acl allow",
    "updateBrokerConfig": "config set",
    "updateControllerConfig": "config set",
    "updateKvConfig": "kv set",
    "updateNamesrvConfig": "config set",
    "updateOrderConf": "kv set",
    "updateSubGroup": "group create",
    "updateSubGroupList": "cluster import",
    "updateTopic": "topic create",
    "updateTopicList": "cluster import",
    "updateTopicPerm": "topic update",
    "updateUser": "user update",
    "wipeWritePerm": "cluster stop-writes",
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
    "--delay": "--deliver-after 3s",
    "--after": "--deliver-after 3s",
}
# Synonyms; each group of commands uses one of them.
ALIKE: tuple[frozenset[str], ...] = (
    frozenset({"list", "ls", "show", "describe", "get", "status", "info", "stats"}),
    frozenset({"create", "add", "new", "set", "make"}),
    frozenset({"delete", "remove", "rm", "del", "drop", "forget"}),
    frozenset({"update", "alter", "modify", "edit", "set", "change"}),
    frozenset({"redrive", "resend", "retry", "replay", "requeue", "send"}),
    frozenset({"reset", "seek", "move"}),
    frozenset({"recall", "cancel", "delete"}),
)
# Commands that do not exist, with the alternative.
WITHOUT: Mapping[tuple[str, str], str] = {
    ("offset", "set"): "`aerobee offset reset` sets the offsets of a group",
}
WORDS: Mapping[str, str] = {
    "--topic": "write the topic after the command, without an option",
    "--message": "write the text after the topic, without an option",
    "--body": "write the text after the topic, without an option",
}


def own_command(name: str) -> str:
    """The equivalent of another tool's command; "" for an unknown command."""
    return COMMANDS.get(name, "")


def own_subcommand(group: str, name: str, taken: Iterable[str]) -> str:
    """A hint for a command that `aerobee GROUP` does not have; "" without a hint."""
    if (group, name) in WITHOUT:
        return WITHOUT[group, name]
    there = set(taken)
    found = sorted({each for alike in ALIKE if name in alike for each in alike} & there)
    return "use " + " or ".join(f"`aerobee {group} {each}`" for each in found) if found else ""


def own_option(option: str, taken: frozenset[str], *, before_command: bool) -> str:
    """A hint for an option that a command does not accept; "" when --help is the best hint.

    `taken`: the accepted options. `before_command`: the option precedes the command.
    """
    if before_command and option in ("-n", "--nameserver", "--json", "-g", "--group", "--topic", "-t"):
        return "write the options of a command after it: `aerobee topic list --nameserver HOST:PORT`"
    own = OPTIONS.get(option, "")
    if own.split(" ")[0] in taken:
        return f"use {own}"
    return "" if before_command else WORDS.get(option, "")
