"""The walks of docs/architecture.md are those of the code: a message of each kind goes from a socket to its reply, and every
function that is handed it is noted.

"Handed" means: an argument is the request, the reply, the message in one of its forms (FORMS), or bytes that hold it. What only
changes its form or holds it (CODECS) is no station. A climb is a call from a file to one in a higher layer.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import aerobee
from aerobee.broker.fastpath.request import Request
from aerobee.broker.pop.engine import PopWant, Taken
from aerobee.broker.pop.pop_service import PopOutcome, PopRequest
from aerobee.broker.pull.pull_service import Pull, PullOutcome, PullRequest
from aerobee.broker.send.send_header import SendHeader
from aerobee.broker.send.send_service import SendOutcome
from aerobee.remoting.command import RemotingCommand
from aerobee.remoting.frame import FrameDecoder, encode_frame
from aerobee.store.append.log_appender import LaidOut
from aerobee.store.log.stored_message import AppendResult, GetResult, StoredMessage
from aerobee.testing.local_cluster import LocalCluster
from tests.unit.broker.sending import send_frame
from tests.unit.layers import LAYERS

ROOT = Path(aerobee.__file__).parent
PAGE = ROOT.parent / "docs" / "architecture.md"
FORMS = (
    RemotingCommand, Request, SendHeader, SendOutcome, StoredMessage, AppendResult, LaidOut, PullRequest, Pull, PullOutcome,
    GetResult, PopRequest, PopWant, Taken, PopOutcome,
)  # fmt: skip
CODECS = frozenset(
    {
        "message.py", "remoting/frame.py", "remoting/command.py", "remoting/json_header.py", "remoting/binary_header.py",
        "store/log/record_layout.py", "store/log/stored_message.py", "broker/fastpath/request.py",
    }
)  # fmt: skip
WATCHES = frozenset({"remoting/loop_watch.py"})  # called when a step took long, which may happen to any
UNIQUE_KEY = "7F00000160D9E3927C4D698557712B98"  # in the request, in the record and in the reply
FILES_MAX = {
    "send": 12,
    "pull": 12,
    "POP": 12,
    "delayed message": 13,
}  # the last one passes its put hook, too
CLIMBS_MAX = 2


class Walk:
    """Who was handed the message, in order."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.climbs: list[str] = []

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(f"{ROOT}/"):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(_is_message(frame.f_locals[name]) for name in names if name in frame.f_locals):
            return
        file = code.co_filename[len(f"{ROOT}/") :]
        if file in CODECS or file in WATCHES:
            return
        if file not in self.files:
            self.files.append(file)
        caller: FrameType | None = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(f"{ROOT}/"):
            caller = caller.f_back
        if caller is not None:
            above = caller.f_code.co_filename[len(f"{ROOT}/") :]
            if _layer(file) > _layer(above):
                self.climbs.append(f"{above} -> {file}")


def _is_message(value: Any) -> bool:
    if type(value) in (list, tuple):
        return bool(value) and _is_message(value[0])
    return isinstance(value, FORMS) or (
        isinstance(value, (bytes, bytearray)) and UNIQUE_KEY.encode() in value
    )


def _layer(file: str) -> int:
    return LAYERS[file.split("/")[0].removesuffix(".py")]


def walk_on_the_page(name: str) -> list[str]:
    """The files of one walk of docs/architecture.md."""
    (block,) = re.findall(
        rf"^    {name}: (.*(?:\n {{8}}.*)*)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [file.strip() for file in str(block).split(">")]


class Peer:
    """A client of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()

    async def ask(self, frame: bytes) -> RemotingCommand:
        self._writer.write(frame)
        while (reply := self._decoder.next_frame()) is None:
            self._decoder.feed(await self._reader.read(1 << 16))
        return reply

    async def walk(self, frame: bytes) -> tuple[Walk, RemotingCommand]:
        """Ask once; the request and its reply are made and read here with the codecs alone, which are no stations."""
        walk = Walk()
        sys.setprofile(walk.note)
        try:
            reply = await self.ask(frame)
        finally:
            sys.setprofile(None)
        return walk, reply

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCluster]:
    monkeypatch.setenv("AEROBEE_FAST_PATH", "python")
    async with LocalCluster() as cluster:
        await cluster.create_topic("TopicNormal")
        yield cluster


def _send(more: str = "") -> bytes:
    return send_frame(properties=f"UNIQ_KEY\x01{UNIQUE_KEY}\x02TAGS\x01A\x02KEYS\x01k\x02{more}")


def _pull() -> bytes:
    ext = {
        "consumerGroup": "group", "topic": "TopicNormal", "queueId": "1", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "subscription": "*", "expressionType": "TAG", "mark": UNIQUE_KEY,
    }  # fmt: skip
    return encode_frame(RemotingCommand(11, ext))


def _pop() -> bytes:
    ext = {
        "consumerGroup": "group", "topic": "TopicNormal", "queueId": "-1", "maxMsgNums": "32", "invisibleTime": "10000",
        "pollTime": "60000", "bornTime": "1700000000000", "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
        "mark": UNIQUE_KEY,
    }  # fmt: skip
    return encode_frame(RemotingCommand(200050, ext))


WALKS = {
    "send": [_send()],
    "pull": [_send(), _pull(), _pull()],  # the first one makes the group
    "POP": [_send(), _pop(), _send(), _pop()],
    "delayed message": [_send("DELAY\x013\x02")],
}


async def walk(cluster: LocalCluster, frames: list[bytes], *, by_handlers: bool) -> Walk:
    """The way of the last one."""
    host, port = cluster.broker_addresses[0].split(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    assert (await peer.ask(send_frame())).code == 0  # what is made once is made
    if by_handlers:
        cluster.broker()._serving.fast_path.close()
    *before, last = frames
    for frame in before:
        assert (await peer.ask(frame)).code == 0
    walk, reply = await peer.walk(last)
    assert reply.code == 0, reply.remark
    peer.close()
    return walk


@pytest.mark.parametrize("name", WALKS)
async def test_a_message_goes_by_the_handlers_as_the_page_shows(cluster: LocalCluster, name: str) -> None:
    taken = await walk(cluster, WALKS[name], by_handlers=True)
    assert taken.files == walk_on_the_page(name)
    assert len(taken.files) <= FILES_MAX[name]
    assert len(taken.climbs) <= CLIMBS_MAX, taken.climbs


@pytest.mark.parametrize("name", WALKS)
async def test_a_message_goes_by_the_fast_path_as_the_page_shows(cluster: LocalCluster, name: str) -> None:
    taken = await walk(cluster, WALKS[name], by_handlers=False)
    assert taken.files == walk_on_the_page(f"{name}, fast path")
    assert len(taken.files) <= FILES_MAX[name]
    assert len(taken.climbs) <= CLIMBS_MAX, taken.climbs
