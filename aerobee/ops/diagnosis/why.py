"""`aerobee why`: explain why a group has not consumed a message, lags, or consumed a message twice.

why_facts.py collects the state of brokers and the traces of clients; why_rules.py derives the findings.
"""

from __future__ import annotations

from typing import Annotated

import typer

from aerobee.errors import UsageError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import check_group_name
from aerobee.ops.diagnosis.why_facts import gather_group, gather_message
from aerobee.ops.diagnosis.why_rules import findings
from aerobee.ops.options.clients import open_admin
from aerobee.ops.options.options import AsJson, NameServers
from aerobee.ops.terminal.failure import ExitCode
from aerobee.ops.terminal.output import Output
from aerobee.ops.terminal.run import Stop, run


def register(app: typer.Typer) -> None:
    app.command("why")(why)


def why(
    name: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="The consumer group, instead of --group.")
    ] = None,
    group_option: Annotated[
        str | None, typer.Option("--group", "-g", metavar="GROUP", help="The consumer group.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Explain the lag in this topic only.")
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option("--message", "-m", metavar="ID", help="A message, by unique key or offset message id."),
    ] = None,
    nameserver: NameServers = NAMESERVER_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Explain why a group has not consumed, lags, or consumed twice: for one message, or in general."""
    out = Output(as_json)
    group = _one_of(name, group_option)
    check_group_name(group)

    async def command(stop: Stop) -> int:
        async with open_admin(nameserver) as admin:
            facts = await gather_group(admin, group, topic)
            message = await gather_message(admin, facts, message_id, topic) if message_id else None
        found = findings(facts, message)
        if as_json:
            out.document(
                {
                    "group": group,
                    "topic": topic,
                    "message_id": message.message_id if message is not None else None,
                    "answer": found[0].kind,
                    "findings": [each.as_document() for each in found],
                }
            )
        else:
            out.say(found[0].text, style="bold")
            for each in found[1:]:
                out.say(f"- {each.text}")
        missing = found[0].kind == "no-group" or (topic is not None and topic in facts.missing_topics)
        return int(ExitCode.NOT_FOUND if missing else ExitCode.DONE)

    raise typer.Exit(run(command))


def _one_of(name: str | None, group: str | None) -> str:
    """The group, given as an argument or as an option. Raises UsageError."""
    if name and group and name != group:
        raise UsageError(f"the group is {name!r} and --group {group!r}: name one group")
    if not (name or group):
        raise UsageError("name a group: `aerobee why GROUP`; `aerobee group list` shows the groups")
    return name or group or ""
