"""`aerobee transaction`: list, commit, rollback, check."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from aerobee.client import Admin
from aerobee.client.admin.transactions import GIVEN_UP, LIST_MAX, OPEN, TransactionInfo
from aerobee.errors import QueryNotFound, RequestNotSupported, UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, ClusterName, NameServers, Yes, ask, never_delivered
from aerobee.ops.terminal.failure import NotFound
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run
from aerobee.ops.terminal.times import moment_text, seconds
from aerobee.words import plural

app = typer.Typer(
    name="transaction",
    help="Open transactions: list, commit, rollback, check.",
    no_args_is_help=True,
)

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Transaction ids, as `list` shows them.")]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", help="Producer group; needed if two groups have a transaction with this id."
    ),
]
_DONE = {"committed": "committed", "rolled back": "rolled back", "asked": "being checked"}


@app.command("list")
def list_transactions(
    given_up: Annotated[
        bool, typer.Option("--given-up", help="List transactions that the broker no longer checks.")
    ] = False,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="List transactions of this producer group only.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="List transactions of this topic only.")
    ] = None,
    older_than_s: Annotated[
        float,
        typer.Option(
            "--older-than",
            parser=seconds,
            metavar="SPAN",
            help="List transactions open for longer than this: 90s, 1h30m.",
        ),
    ] = 0.0,
    count: Annotated[
        int,
        typer.Option("--count", min=1, max=LIST_MAX, help="Maximum number of transactions, oldest first."),
    ] = 100,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """List the open transactions: age, checks sent, and the producer of each."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            try:
                found = await admin.transactions(
                    state=GIVEN_UP if given_up else OPEN,
                    group=group,
                    topic=topic,
                    older_than_s=older_than_s,
                    count_max=count,
                    cluster=cluster,
                )
            except RequestNotSupported as error:
                raise _not_ours(error) from error
        out.table(
            [_row(info) for info in found.transactions],
            {
                "transaction_id": "transaction",
                "topic": "topic",
                "age": "age",
                "checks_of": "checks",
                **({} if given_up else {"next_check": "next check"}),
                "group": "producer group",
                "producer": "sent from",
                "producers_online": "producers online",
                "keys": "keys",
            },
            empty="no transaction was given up" if given_up else "no transaction is open",
        )
        if found.total > len(found.transactions):
            out.note(
                f"showing the oldest {len(found.transactions)} of {plural(found.total, 'matching transaction')}; --count shows more"
            )

    run(command)


def _row(info: TransactionInfo) -> dict[str, Any]:
    return {
        "transaction_id": info.transaction_id,
        "state": info.state,
        "topic": info.topic,
        "queue": info.queue_id,
        "age": _duration(info.age_ms),
        "age_ms": info.age_ms,
        "stored": moment_text(info.store_timestamp),
        "checks_of": f"{info.checks} of {info.checks_max}",
        "checks": info.checks,
        "checks_max": info.checks_max,
        "next_check": f"in {_duration(info.next_check_ms)}" if info.next_check_ms > 0 else "now",
        "next_check_ms": info.next_check_ms,
        "group": info.group,
        "producer": info.producer,
        "producers_online": info.producers_online,
        "keys": list(info.keys),
        "tag": info.tag,
        "body_bytes": info.body_bytes,
        "offset_message_id": info.offset_message_id,
        "broker": info.broker_address,
    }


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h {seconds % 3_600 // 60} min"


@app.command("commit")
def commit_transactions(
    ids: Ids,
    group: OfGroup = None,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Commit these transactions on behalf of their producer and deliver their messages; given-up transactions too."""
    question = None if yes else f"Deliver {_these(ids)}? This cannot be undone."
    _resolve("commit", ids, group, cluster, nameserver, as_json, question)


@app.command("rollback")
def roll_back_transactions(
    ids: Ids,
    group: OfGroup = None,
    yes: Yes = False,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Roll these transactions back on behalf of their producer and drop their messages."""
    question = None if yes else f"Drop {_these(ids)}? {never_delivered(len(ids))}"
    _resolve("rollback", ids, group, cluster, nameserver, as_json, question)


@app.command("check")
def check_transactions(
    ids: Ids,
    group: OfGroup = None,
    cluster: ClusterName = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Make the broker check these transactions with a live producer of the group now. The check count of a given-up one restarts at zero."""
    _resolve("check", ids, group, cluster, nameserver, as_json)


def _not_ours(error: RequestNotSupported) -> UsageError:
    return UsageError(
        f"broker {error.address} is not an Aerobee broker: RocketMQ's brokers can neither list nor resolve "
        "transactions; select other brokers with --cluster"
    )


def _these(ids: list[str]) -> str:
    return (
        f"the message of transaction {ids[0]}"
        if len(ids) == 1
        else f"the messages of {plural(len(ids), 'transaction')}"
    )


def _missing(sentence: str) -> NotFound:
    return NotFound(f"{sentence}; `aerobee transaction list` shows the open transactions")


async def _look(admin: Admin, transaction_id: str, group: str | None, cluster: str | None) -> None:
    """Raise NotFound for a transaction that is neither open nor given up, before the command asks for confirmation."""
    for state in (OPEN, GIVEN_UP):
        found = await admin.transactions(
            state=state, group=group, transaction_id=transaction_id, count_max=1, cluster=cluster
        )
        if found.total:
            return
    whose = f" of group {group}" if group else ""
    raise _missing(f"no transaction {transaction_id}{whose} is open, and none was given up")


def _resolve(
    action: str,
    ids: list[str],
    group: str | None,
    cluster: str | None,
    nameserver: str,
    as_json: bool,
    question: str | None = None,
) -> None:
    """Resolve each transaction; with `question` first check that all of them exist, then ask for confirmation."""
    out = Output(as_json)

    async def command(stop: Stop) -> None:
        async with open_admin(nameserver) as admin:
            if question is not None:
                try:
                    for transaction_id in ids:
                        await _look(admin, transaction_id, group, cluster)
                except RequestNotSupported as error:
                    raise _not_ours(error) from error
                ask(question, False)
            for transaction_id in ids:
                try:
                    done = await admin.resolve_transaction(
                        transaction_id, action, group=group, cluster=cluster
                    )
                except QueryNotFound as error:
                    raise _missing(error.remark) from error
                except RequestNotSupported as error:
                    raise _not_ours(error) from error
                document: dict[str, Any] = {
                    "transaction_id": transaction_id,
                    "outcome": done.outcome,
                    "broker": done.broker_address,
                }
                text = f"{transaction_id} is {_DONE.get(done.outcome, done.outcome)}"
                if done.queue_offset >= 0:
                    document |= {
                        "topic": done.topic,
                        "queue": done.queue_id,
                        "offset": done.queue_offset,
                    }
                    text += f": {done.topic} queue {done.queue_id} offset {done.queue_offset}"
                elif done.checks >= 0:
                    document["checks"] = done.checks
                    text += f": check {done.checks} was sent"
                out.line(document, text)

    run(command)
