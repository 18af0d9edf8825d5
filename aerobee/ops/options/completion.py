"""Shell completion: topics, groups, brokers and clusters from the cluster, contexts, and values of options with a choice.

`aerobee --install-completion` installs it. A request to the cluster takes ANSWER_S at most. Without a reply the command
completes nothing and prints nothing, because the shell would show the text in the middle of the line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from aerobee.errors import AerobeeError
from aerobee.host_port import NAMESERVER_DEFAULT
from aerobee.message import DLQ_PREFIX, RETRY_PREFIX
from aerobee.remoting.protocol import MESSAGE_TYPES

if TYPE_CHECKING:
    from aerobee.client import Admin

ANSWER_S = 2.0  # longest time that the Tab key waits for a reply of the cluster
LEVELS = ("debug", "info", "warning", "error")
PROFILES = ("development", "production")
# "command option" or "option" -> values; the longer name takes precedence.
CHOICES: dict[str, tuple[str, ...]] = {
    "log_level": LEVELS,
    "profile": PROFILES,
    "message_type": MESSAGE_TYPES,
    "perm": ("rw", "r", "w"),
    "group mode mode": ("pull", "pop"),
    "consume start": ("first", "last", "now", "offset:"),
    "group reset to": ("first", "last", "now"),
    "offset reset to": ("earliest", "latest", "offset:", "now"),
}


async def _topics(admin: Admin) -> Iterable[str]:
    own = set(await admin.system_topics())
    return [
        name
        for name in await admin.topics()
        if name not in own and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    ]


async def _groups(admin: Admin) -> Iterable[str]:
    return {info.name for info in await admin.groups()}


async def _brokers(admin: Admin) -> Iterable[str]:
    return {info.broker_name for info in await admin.brokers()}


async def _clusters(admin: Admin) -> Iterable[str]:
    return {info.cluster for info in await admin.brokers()}


NAMES: dict[str, Callable[[Admin], Awaitable[Iterable[str]]]] = {
    "topic": _topics,
    "group": _groups,
    "broker": _brokers,
    "cluster": _clusters,
    "offset clone source": _groups,
    "offset clone target": _groups,
}
MAKES = frozenset(
    {"topic create topic", "context add name", "context set name", "up brokers"}
)  # names that do not exist yet
CONTEXTS = frozenset({"context use name", "context delete name", "context set name"})


def add_to(command: Any, path: str) -> None:
    """Set the completion function of every parameter of a command, or of all commands of a group."""
    for name, below in getattr(command, "commands", {}).items():
        add_to(below, f"{path} {name}")
    for parameter in command.params:
        own = f"{path} {parameter.name}"
        complete = _of(own, str(parameter.name))
        if complete is not None:
            parameter._custom_shell_complete = complete


def _of(own: str, name: str) -> Callable[[Any, Any, str], list[str]] | None:
    if name == "context" or own in CONTEXTS:
        return lambda _context, _parameter, begin: _beginning(begin, _context_names())
    choices = CHOICES.get(own) or CHOICES.get(name)
    if choices is not None:
        return lambda _context, _parameter, begin: _beginning(begin, choices)
    find = NAMES.get(own) or NAMES.get(name)
    if find is None or own in MAKES:
        return None
    return lambda context, _parameter, begin: _beginning(begin, _asked(context, find))


def _beginning(begin: str, values: Iterable[str]) -> list[str]:
    folded = begin.lower()
    return sorted(value for value in values if value.lower().startswith(folded))


def _context_names() -> Iterable[str]:
    from aerobee.client.session.contexts import contexts_path, read_contexts

    try:
        return list(read_contexts(contexts_path()).contexts)
    except AerobeeError:
        return ()


def _asked(context: Any, find: Callable[[Admin], Awaitable[Iterable[str]]]) -> Iterable[str]:
    # Every command imports this module; only a completion needs a client.
    from aerobee.ops.options.clients import open_admin

    async def ask() -> Iterable[str]:
        async with (
            asyncio.timeout(ANSWER_S),
            open_admin(context.params.get("nameserver") or NAMESERVER_DEFAULT) as admin,
        ):
            return await find(admin)

    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(ask())
    except (AerobeeError, OSError, TimeoutError):
        return ()
    finally:
        logging.disable(logging.NOTSET)
