"""PythonBackend: whole bursts of ordinary sends and pulls, from the bytes of a read to the bytes of the replies. A core.

The handlers are the reference; this backend and the native one (native/) serve the same common requests; seam.py
explains the seam. FastPath (fast_path.py) is the I/O layer that joins either of them to connections, watermarks and statistics.

An ordinary frame is SEND_MESSAGE (10, 310), SEND_BATCH_MESSAGE (320) or the oneway form of them, in either header type,
to an existing topic and queue, within all limits, without a property that requires more than storing it (transaction,
LMQs); or a pull (pull.py), a message for later (delayed.py), a half message or its end (transaction.py). Each kind has
a frame handler, which registers for its request codes; a frame that one leaves is offered to the next, and no two serve
the same frame, so the frame handler of the last frame comes first. All other frames are left to the request handlers,
which handle every error: no frame is refused here. Numbers are JSON integers or texts of digits, with the same meaning
in both backends: a form that only Python accepts is not ordinary. Nothing changes before a message is known to be
ordinary; a failure after its first byte is a fault, and no handler serves the frame again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson

from aerobee.broker.fastpath.batch import Batches
from aerobee.broker.fastpath.delayed import Delayed
from aerobee.broker.fastpath.frame_handlers import FrameHandler, Serve
from aerobee.broker.fastpath.options import OptionSends
from aerobee.broker.fastpath.permits import FENCE
from aerobee.broker.fastpath.pull import Pulls
from aerobee.broker.fastpath.request import REPLY_BYTES_MAX, UNREADABLE, FallBackToHandler, Request
from aerobee.broker.fastpath.results import BurstResult
from aerobee.broker.fastpath.seam import (
    Appended,
    BackendSettings,
    DelaySettings,
    HandedOut,
    OptionSettings,
    PullResult,
    TransactionSettings,
)
from aerobee.broker.fastpath.send import Sends
from aerobee.broker.fastpath.shared import PREFIXES, Shared, frame_prefix
from aerobee.broker.fastpath.transaction import Transactions
from aerobee.remoting.binary_header import decode_binary_header
from aerobee.remoting.command import FLAG_ONEWAY, VERSION, SerializeType
from aerobee.remoting.frame import HEADER_BYTES_MAX, PREFIX
from aerobee.remoting.request_stats import Answers

if TYPE_CHECKING:
    from aerobee.broker.fastpath.guard import Guard

_unpack_words, _loads = PREFIX.unpack_from, orjson.loads
_header_of = itemgetter("code", "flag", "opaque", "extFields")
_BINARY = SerializeType.ROCKETMQ.value
_LOG = logging.getLogger("aerobee.broker.fastpath")


class PythonBackend:
    """Serves bursts of frames (seam.Backend)."""

    def __init__(
        self,
        settings: BackendSettings,
        *,
        delayed: DelaySettings | None = None,
        transactions: TransactionSettings | None = None,
        options: OptionSettings | None = None,
    ) -> None:
        self._shared = shared = Shared(settings)
        self._permits = settings.permits
        self._request = Request()
        self._handlers: list[FrameHandler] = []
        # By open gates (1 sends, 2 pulls) and request code: the serving functions.
        self._serves: dict[int, dict[Any, tuple[Serve, ...]]] = {gates: {} for gates in range(4)}
        self._guard: Guard | None = None
        if settings.guard is not None:
            from aerobee.broker.fastpath.guard import Guard  # it loads OpenSSL's hashes

            self._guard = Guard(settings.guard)
        special = settings.special_properties
        self._register(Sends(shared, special))
        self._register(Batches(shared))
        self._register(Pulls(shared, settings))
        if delayed is not None:
            self._register(Delayed(shared, delayed, special))
        if transactions is not None:
            self._register(Transactions(shared, transactions, special))
        if options is not None:
            self._register(OptionSends(shared, options, special))

    def _register(self, handler: FrameHandler) -> None:
        self._handlers.append(handler)
        for gates, serves in self._serves.items():
            if gates & (1 if handler.is_send else 2):
                for code, serve in handler.serves.items():
                    serves[code] = (*serves.get(code, ()), serve)

    def take_totals(self) -> tuple[Sequence[Appended], Sequence[HandedOut]]:
        """As Backend.take_totals."""
        return self._shared.take_stored(), self._shared.take_handed_out()

    def forget_topics(self) -> None:
        """As Backend.forget_topics."""
        self._shared.forget_topics()
        for handler in self._handlers:
            handler.forget_topics()

    def forget_authorizations(self) -> None:
        """As Backend.forget_authorizations."""
        for handler in self._handlers:
            handler.forget_authorizations()

    def forget_grants(self) -> None:
        """As Backend.forget_grants."""
        if self._guard is not None:
            self._guard.forget()

    def burst(
        self,
        data: bytes | bytearray,
        position: int,
        born_host: bytes,
        now_ms: int,
        takes_sends: bool,
        takes_pulls: bool,
        host: str | None = None,
    ) -> BurstResult:
        """As Backend.burst."""
        shared, request, guard, is_slow = self._shared, self._request, self._guard, False
        shared.begin(born_host, now_ms)
        request.data = data
        at, size, last = position, len(data), len(data) - 8  # position of the last possible frame start
        serves_of = self._serves[(takes_sends and not self._permits[FENCE]) + 2 * takes_pulls]
        try:
            while at <= last and shared.pulled_bytes < REPLY_BYTES_MAX:
                length, word = _unpack_words(data, at)
                if (end := at + 4 + length) > size:
                    break
                is_slow = True  # until this frame is served
                if (body_at := at + 8 + (word & 0xFFFFFF)) > end or word & 0xFFFFFF > HEADER_BYTES_MAX:
                    break
                try:
                    if word >> 24:
                        if word >> 24 != _BINARY:
                            break
                        command = decode_binary_header(data[at + 8 : body_at], b"")
                        code, flag, opaque = command.code, command.flag, command.opaque
                        ext = command.ext or {}
                    else:
                        command = None
                        code, flag, opaque, ext = _header_of(_loads(data[at + 8 : body_at]))
                except UNREADABLE:
                    break
                if (
                    not (type(code) is type(flag) is type(opaque) is int)
                    or (flag and flag != FLAG_ONEWAY)
                    or not -0x80000000 <= opaque <= 0x7FFFFFFF
                ):
                    break
                request.start, request.body_at, request.end = at, body_at, end  # four would be a tuple first
                request.code, request.flag, request.opaque = code, flag, opaque
                request.ext, request.command, request.pairs = ext, command, None
                serves = serves_of.get(code, ()) if guard is None or guard.lets(request, host) else ()
                for serve in serves:
                    try:
                        answer = serve(request)
                    except FallBackToHandler:
                        continue
                    is_slow = False
                    break
                if is_slow:
                    break
                if serve is not serves[0]:  # the next frame is usually of the same kind
                    serves_of[code] = (serve, *(other for other in serves if other is not serve))
                if answer is not None and not flag:
                    queue, queue_offset, message_ids, unique_key, waits, more = answer
                    if command is None:
                        text = (
                            f'{queue.reply_start}{unique_key}","msgId":"{message_ids}{shared.reply_fields}'
                            f'"{queue_offset}{more}"}},"flag":1,"language":"PYTHON","opaque":{opaque},'
                            f'"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
                        )
                        length = len(text)
                        text = (PREFIXES[length] if length < 4096 else frame_prefix(length)) + text
                    else:
                        text = shared.binary_reply(command, queue, queue_offset, message_ids, unique_key)
                    texts, codes = shared.outputs[waits]
                    texts.append(text)
                    codes.append(code)
                elif shared.has_counted:
                    shared.has_counted = False
                elif answer is not None or not shared.pulled or shared.pulled[-1].held is None:
                    shared.codes.append(-code if flag else code)
                at = end
        except Exception as error:
            return self._end(end, False, error)
        return self._end(at, is_slow, None)

    def _end(self, used: int, is_slow: bool, fault: Exception | None) -> BurstResult:
        """Write records and send notices that a burst leaves to its end."""
        shared = self._shared
        self._request.data = b""
        frames = deferred_frames = b""
        deferred_answers: Answers = ()
        if replies := shared.replies:
            frames = "".join(replies).encode("latin-1")
            replies.clear()
        if held := shared.held:
            deferred_frames = "".join(held).encode("latin-1")
            held.clear()
            deferred_answers = tuple(Counter(shared.deferred_codes).items())
            shared.deferred_codes.clear()
        leveled = shared.take_leveled() if shared.has_leveled else ()
        pulled: Sequence[PullResult] = ()
        if shared.pulled:
            pulled, shared.pulled, shared.pulled_bytes = shared.pulled, [], 0
            if parts := shared.parts:
                shared.parts = []
                if frames:
                    parts.append(frames)
                frames = parts[0] if len(parts) == 1 else b"".join(parts)  # one part alone is not copied
        stored_count = 0
        try:
            if shared.has_stored:
                stored_count = shared.end()
        finally:
            if shared.at_end:
                self._tell_end()
        result = BurstResult()
        result.replies = frames
        result.used = used
        result.is_slow = is_slow
        result.deferred_replies = deferred_frames
        result.deferred_answers = deferred_answers
        result.leveled_replies = leveled
        result.stored_count = stored_count
        result.pulled = pulled
        result.fault = fault
        return result

    def _tell_end(self) -> None:
        at_end, self._shared.at_end = self._shared.at_end, []
        for end in at_end:
            try:
                end()
            except Exception:
                _LOG.exception("the end of a burst failed after its messages were stored")
