"""Every kind of message that RocketMQ's official Python client 5.1.2 sends, straight to a broker's gRPC port.

Runs in the environment that scripts/setup-interop makes. Arguments: the endpoint, then a prefix of topics. Prints one line of JSON
for each kind: {"kind": name, "ids": message ids, "extra": text}.
"""

from __future__ import annotations

import json
import sys
import time

from rocketmq import (
    ClientConfiguration,
    Credentials,
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)

ENDPOINT, PREFIX = sys.argv[1:]


def message(topic: str, body: str) -> Message:
    made = Message()
    made.topic, made.body = f"{PREFIX}{topic}", body.encode()
    return made


def say(kind: str, ids: list[str], extra: str = "") -> None:
    print(json.dumps({"kind": kind, "ids": ids, "extra": extra}), flush=True)


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        say("checked", [message.message_id], message.body.decode())
        return TransactionResolution.COMMIT


def producer(*topics: str, checker: Checker | None = None) -> Producer:
    made = Producer(
        ClientConfiguration(ENDPOINT, Credentials()),
        tuple(f"{PREFIX}{topic}" for topic in topics),
        checker=checker,
    )
    made.startup()
    return made


def main() -> None:
    plain = producer("normal", "fifo", "delay", "priority")
    sent = message("normal", "n")
    sent.tag, sent.keys = "A", "k1"
    sent.add_property("colour", "red")
    say("normal", [plain.send(sent).message_id])
    ids = []
    for number in range(4):
        sent = message("fifo", f"f{number}")
        sent.message_group = "g1"
        ids.append(plain.send(sent).message_id)
    say("fifo", ids)
    sent = message("delay", "d")
    sent.delivery_timestamp = int(time.time()) + 60
    receipt = plain.send(sent)
    recalled = plain.recall_message(f"{PREFIX}delay", receipt.recall_handle)
    say("delay", [receipt.message_id], "recalled" if recalled == receipt.message_id else str(recalled))
    sent = message("priority", "p")
    sent.priority = 2
    say("priority", [plain.send(sent).message_id])
    try:
        plain.send(message("fifo", "no group"))
        say("wrong", [], "sent")
    except Exception as error:
        say("wrong", [], type(error).__name__)
    plain.shutdown()

    halves = producer("transaction", checker=Checker())
    for body in ("commit", "rollback", "forgotten"):
        transaction = halves.begin_transaction()
        receipt = halves.send(message("transaction", body), transaction)
        if body == "commit":
            transaction.commit()
        elif body == "rollback":
            transaction.rollback()
        say(body, [receipt.message_id])
    sys.stdin.readline()  # until the broker has asked about the forgotten one
    halves.shutdown()


main()
