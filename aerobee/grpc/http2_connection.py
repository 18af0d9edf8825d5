"""The server's end of one HTTP/2 connection that carries gRPC calls. Core: bytes and time in, bytes and events out.

    receive(data, now) -> events        outgoing() -> bytes        tick(now) -> events, no later than due()
    proceed(now) -> events, while has_more

frame_scanner.py cuts and counts the frames; http2_engine.py interprets them. Source: RFC 9113, RFC 7541 and
the gRPC protocol over HTTP/2.

Invariants: - receive() never raises for bytes of the peer. A violation of the protocol or a limit ends the connection
with GOAWAY, an error of one call ends that call.
- Each call that has started ends exactly once: when finish() was called and everything was sent, or by the event CallEnded.
  After it nothing is sent for the call.
- One call of receive(), proceed() or tick() does a bounded amount of work, whatever the peer sends.
- A compressed message is inflated in a later call than the one that returned its CallStarted: the service has admitted the call then.
- What waits for the peer's windows is bounded in bytes (`unsent_bytes_max`) and in time (`window_s`).
"""

from __future__ import annotations

import heapq
import itertools
import math
import struct
import sys
from collections.abc import Callable, Iterable, Sequence

from aerobee.grpc.call import (
    CallAnswered,
    CallEnded,
    CallStarted,
    Event,
    OpenCall,
    RequestEnded,
    RequestMessage,
    Writable,
)
from aerobee.grpc.frame_scanner import (
    CANCEL,
    CONTINUATION,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    NO_ERROR,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Frame,
    FrameScanner,
    Http2Fault,
    Http2Violation,
    check_goaway,
)
from aerobee.grpc.header_encoder import encode_headers
from aerobee.grpc.http2_engine import CANCELLED, Http2Engine
from aerobee.grpc.limits import MIB, Http2Limits
from aerobee.grpc.message_reader import (
    ACCEPTED_ENCODINGS,
    COMPRESSED,
    MessageReader,
    frame_message,
    message_of_whole,
)
from aerobee.grpc.request_headers import HeaderField, read_headers
from aerobee.grpc.status import CallError, GrpcStatus, encode_status_message
from aerobee.grpc.timeout import parse_timeout

CONTENT_TYPE = "application/grpc"
_TRAILERS_ONLY = encode_headers([(":status", "200"), ("content-type", CONTENT_TYPE)])
_RESPONSE_HEADERS = _TRAILERS_ONLY + encode_headers([("grpc-accept-encoding", ACCEPTED_ENCODINGS)])
_OK_TRAILERS = encode_headers([("grpc-status", str(int(GrpcStatus.OK)))])
# What is done in one go, some 20 ms: the rest of a read waits for proceed(), that of the deadlines for the next tick().
FRAMES_AT_ONCE = 256
REQUEST_BYTES_AT_ONCE = (
    4 * MIB
)  # inflated; what a message or a header block costs besides counts as so many bytes:
MESSAGE_BYTES, HEADER_BYTE_BYTES = 2_048, 64
DEADLINES_AT_ONCE = 512
DEADLINES_KEPT = 1_024  # entries of calls that have ended, before they are dropped
GOAWAY_TEXT_BYTES_MAX = 256
_GOAWAY_HEAD = struct.Struct(">BHBBIII")  # length in 24 bits, type, flags, stream 0, last stream, error code
_PING_DATA = b"aerobee\0"
_LAST_STREAM_ID = 2**31 - 1


class Http2Connection:
    """One connection. `calls`: open calls by stream id. `is_closed`: read no more, send outgoing(), then
    close the transport.
    """

    def __init__(
        self, limits: Http2Limits, now: float, message_bytes_max: Callable[[str], int] | None = None
    ) -> None:
        """`now`: monotonic seconds, as everywhere here. `message_bytes_max` gives the bound of one request message by a call's path,
        where it is below that of `limits`."""
        self._limits = limits
        self._message_bytes_max = message_bytes_max or (lambda path: limits.message_bytes_max)
        self.calls: dict[int, OpenCall] = {}
        self._engine = self._make_engine()
        self._scanner = FrameScanner(limits, now)
        self._extra_out = b""
        self.is_closed = False
        self.close_reason = ""
        self._has_more = False
        self._is_window_open = False  # of the connection, or of every stream: since the last look
        self._read_bytes = 0  # of request messages, and what counts as such, in this go
        self._unadmitted: set[int] = set()  # streams of this go whose messages may be compressed
        self._receiving_bytes = 0
        self._unsent_bytes = 0
        self._deadlines_max = 0
        self._deadlines: list[
            tuple[float, int, OpenCall]
        ] = []  # heap of deadlines; a call has one entry for each of its time limits
        self._sequence = itertools.count()
        self._started = self._heard = now
        self._waiting_since: float | None = None  # time since which a frame is incomplete
        self._pinged: float | None = None  # time of this side's unacknowledged PING
        self._draining_since: float | None = None
        self._events: list[Event] = []

    def _make_engine(self) -> Http2Engine:
        return Http2Engine(self._limits, self.calls, self)

    # --- the peer's bytes

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take what the peer sent; return what happened. Send outgoing() afterwards, and call proceed() while has_more."""
        if self.is_closed:
            return []
        self._heard = now
        self._pinged = None
        self._scanner.feed(data)
        return self.proceed(now)

    @property
    def has_more(self) -> bool:
        """Whether bytes of the peer wait for proceed(). Nothing should be read until they are done."""
        return self._has_more and not self.is_closed

    def proceed(self, now: float) -> list[Event]:
        """Interpret what waits, but not more than is done in one go; return what happened. Send outgoing() afterwards."""
        if self.is_closed:
            return []
        scanner = self._scanner
        self._has_more = False
        self._read_bytes = 0
        self._unadmitted.clear()
        try:
            if not scanner.has_preface and not scanner.take_preface():
                return self._take_events()
            for _ in range(FRAMES_AT_ONCE):
                if self._unadmitted and self._awaits_admission(scanner.next_data_stream):
                    self._has_more = True
                    break
                frame = None if self.is_closed else scanner.next_frame(now)
                if frame is None:
                    break
                self._waiting_since = None
                kind = frame.kind
                if kind == GOAWAY:
                    self._on_goaway(frame, now)
                else:
                    self._engine.take(frame, now)
                if kind in (HEADERS, CONTINUATION):
                    self._read_bytes += HEADER_BYTE_BYTES * (HEAD_BYTES + len(frame.payload))
                if self._read_bytes >= REQUEST_BYTES_AT_ONCE:
                    self._has_more = True
                    break
            else:
                self._has_more = True
            if self._is_window_open and not self.is_closed:
                self._is_window_open = False
                self._pump_blocked(now)
        except Http2Violation as violation:
            self._engine.end(violation.code)
            self._end(str(violation), now)
        except Http2Fault as fault:
            self._fail(fault.code, str(fault), now)
        if not scanner.is_waiting:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        return self._take_events()

    def outgoing(self) -> bytes:
        """The bytes to send to the peer now."""
        data = self._engine.take_output()
        if self._extra_out:
            data += self._extra_out
            self._extra_out = b""
        return data

    @property
    def is_idle(self) -> bool:
        """Whether no call is open."""
        return not self.calls

    @property
    def receiving_bytes(self) -> int:
        """Bytes of request messages that are not complete."""
        return self._receiving_bytes

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that wait for the peer's windows."""
        return self._unsent_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of the peer that are not interpreted yet."""
        return self._scanner.kept_bytes

    # --- responses

    def start_response(self, call: OpenCall, *, may_idle: bool = False) -> None:
        """Send the response headers now, before the first message. No effect on an ended call. With
        `may_idle` the call stays open without a request.
        """
        call.may_idle = call.may_idle or may_idle
        if not (call.is_over or call.is_responding):
            self._start_response(call)

    def send_message(self, call: OpenCall, data: bytes, now: float) -> bool:
        """Send one response message. False when the caller has to wait for Writable before it sends the next one.

        The call has ended afterwards when the peer takes so little that `unsent_bytes_end` is reached.
        """
        if call.is_over or call.is_finishing:
            return True
        if not call.is_responding:
            self._start_response(call)
        framed = frame_message(data)
        if not call.unsent and len(framed) <= self._engine.room(call):
            self._engine.write_data(call, framed)
            self._scanner.on_response()
            return True
        call.unsent.append(framed)
        call.unsent_bytes += len(framed)
        self._unsent_bytes += len(framed)
        self._pump(call, now)
        if call.unsent and self._unsent_bytes > self._limits.unsent_bytes_end:
            self._engine.reset(call.stream_id, CANCEL)
            self._over(call, "the client takes its responses too slowly")
            return True
        return not call.unsent or self._unsent_bytes <= self._limits.unsent_bytes_max

    def finish(self, call: OpenCall, status: GrpcStatus, message: str, now: float) -> None:
        """End the call with this status, after its unsent messages."""
        if call.is_over or call.is_finishing:
            return
        call.is_finishing = True
        trailers = (
            _OK_TRAILERS if status == GrpcStatus.OK else encode_headers([("grpc-status", str(int(status)))])
        )
        if message:
            trailers += encode_headers([("grpc-message", encode_status_message(message))])
        call.trailers = trailers if call.is_responding else _TRAILERS_ONLY + trailers
        if call.unsent:
            self._pump(call, now)
        else:
            self._write_trailers(call)

    def cancel(self, call: OpenCall, reason: str) -> None:
        """End the call with RST_STREAM, and drop what is unsent. No effect on an ended call."""
        if not call.is_over:
            self._engine.reset(call.stream_id, CANCEL)
            self._over(call, reason)

    # --- time

    def due(self) -> float:
        """Latest time for the next tick(); infinity without pending time-outs."""
        limits = self._limits
        due = math.inf
        if self.calls and self._pinged is None:
            due = self._heard + limits.keepalive_s
        if not self._scanner.has_preface:
            due = min(due, self._started + limits.preface_s)
        if self._waiting_since is not None:
            due = min(due, self._waiting_since + limits.frame_s)
        if self._pinged is not None:
            due = min(due, self._pinged + limits.keepalive_timeout_s)
        if self._draining_since is not None:
            due = min(due, self._draining_since + limits.drain_s)
        if self._deadlines:
            due = min(due, self._deadlines[0][0])
        return due

    def tick(self, now: float) -> list[Event]:
        """Process expired deadlines and time limits, and send keep-alives. Send outgoing() afterwards."""
        if self.is_closed:
            return []
        limits = self._limits
        if not self._scanner.has_preface and now >= self._started + limits.preface_s:
            self._fail(PROTOCOL_ERROR, f"no connection preface within {limits.preface_s:g} s", now)
        elif self._waiting_since is not None and now >= self._waiting_since + limits.frame_s:
            self._fail(
                ENHANCE_YOUR_CALM, f"a frame or header block is incomplete for {limits.frame_s:g} s", now
            )
        elif self._pinged is not None and now >= self._pinged + limits.keepalive_timeout_s:
            self._fail(NO_ERROR, f"no answer to a PING within {limits.keepalive_timeout_s:g} s", now)
        elif self._draining_since is not None and (
            not self.calls or now >= self._draining_since + limits.drain_s
        ):
            self._end("the server is shutting down", now)
        else:
            self._tick_calls(now)
            if self.calls and self._pinged is None and now >= self._heard + limits.keepalive_s:
                self._pinged = now
                self._engine.ping(_PING_DATA)
        return self._take_events()

    def go_away(self, now: float) -> None:
        """Request that the peer use another connection; open calls continue for at most `drain_s`."""
        if self.is_closed or self._draining_since is not None:
            return
        self._draining_since = now
        if self._scanner.has_preface:
            self._write_goaway(NO_ERROR, "the server is shutting down")
        if not self.calls:
            self._end("the server is shutting down", now)

    def lost(self, now: float, reason: str = "the connection is lost") -> list[Event]:
        """The transport is lost: end all calls."""
        self._end(reason, now)
        return self._take_events()

    # --- StreamEvents

    def on_request(
        self, stream_id: int, fields: Sequence[HeaderField], *, ends: bool, length: int | None, now: float
    ) -> None:
        engine, limits = self._engine, self._limits
        try:
            transport, metadata = read_headers(fields)
        except ValueError:
            self._refuse_stream(stream_id, PROTOCOL_ERROR)
            self._scanner.count_reset(now)
            return
        if self._draining_since is not None:
            self._refuse_stream(stream_id, REFUSED_STREAM)
            return
        if transport[":method"] != "POST" or not transport.get("content-type", "").startswith(CONTENT_TYPE):
            http_status = "405" if transport[":method"] != "POST" else "415"
            engine.write_headers(stream_id, encode_headers([(":status", http_status)]), end_stream=True)
            self._stop_receiving(stream_id, is_half_closed=ends)
            return
        path = sys.intern(transport[":path"])
        encoding = transport.get("grpc-encoding", "identity")
        if encoding in COMPRESSED:
            self._unadmitted.add(stream_id)
        timeout, timeout_fault, deadline = transport.get("grpc-timeout"), "", None
        if timeout is not None:
            try:
                deadline = now + parse_timeout(timeout)
            except ValueError as error:
                timeout_fault = str(error)
        window = limits.stream_window_bytes
        bytes_max = min(limits.message_bytes_max, self._message_bytes_max(path))
        call = OpenCall(
            stream_id, path, metadata, now, deadline, encoding, bytes_max, length, engine.stream_window, window, window
        )  # fmt: skip
        call.is_half_closed = ends
        self.calls[stream_id] = call
        if timeout_fault:
            self.finish(call, GrpcStatus.INTERNAL, timeout_fault, now)
            return
        if deadline is not None:
            self._note_time(deadline, call)
        self._note_time(now + limits.request_s, call)
        self._events.append(CallStarted(call))
        if ends:
            self.on_half_close(call, now)

    def on_data(self, call: OpenCall, data: bytes, now: float) -> None:
        reader = call.reader
        if reader is None:
            message = message_of_whole(data, call.message_bytes_max)
            if message is not None:
                self._read_bytes += MESSAGE_BYTES + len(message)
                self._events.append(RequestMessage(call, message))
                return
            if not data:
                return
            reader = call.reader = MessageReader(call.message_bytes_max, call.encoding)
        before = reader.kept_bytes
        try:
            messages = reader.feed(data)
        except CallError as error:
            self._receiving_bytes -= before
            call.reader = None
            self._abandon(call, error, now)
            return
        self._receiving_bytes += reader.kept_bytes - before
        if self._receiving_bytes > self._limits.receiving_bytes_max:
            text = f"requests of more than {self._limits.receiving_bytes_max} bytes are incomplete on this connection"
            self._abandon(call, CallError(GrpcStatus.RESOURCE_EXHAUSTED, text), now)
            return
        for message in messages:
            self._read_bytes += MESSAGE_BYTES + len(message)
            self._events.append(RequestMessage(call, message))

    def on_half_close(self, call: OpenCall, now: float) -> None:
        if call.is_finishing or call.is_over:
            return
        if call.kept_bytes:
            error = CallError(GrpcStatus.INTERNAL, "the request ends in the middle of a message")
            self._abandon(call, error, now)
            return
        self._events.append(RequestEnded(call))

    def on_window(self, call: OpenCall, now: float) -> None:
        if call.unsent:
            self._pump_each((call,), now)

    def on_windows(self) -> None:
        self._is_window_open = True

    def on_reset(self, call: OpenCall) -> None:
        self._over(call, CANCELLED)

    def on_broken(self, call: OpenCall, reason: str, now: float) -> None:
        self._scanner.count_reset(now)
        self._over(call, reason)

    # --- inside: the peer's frames

    def _awaits_admission(self, stream_id: int) -> bool:
        """Whether DATA of this stream may be a compressed message of a call that the service does not know yet."""
        return stream_id in self._unadmitted and stream_id in self.calls

    def _on_goaway(self, frame: Frame, now: float) -> None:
        check_goaway(frame)
        if self._draining_since is None:
            self._draining_since = now
        if not self.calls:
            self._end("the peer said goodbye", now)

    def _refuse_stream(self, stream_id: int, code: int) -> None:
        self._engine.reset(stream_id, code)
        self._engine.close(stream_id, is_reset=True)

    # --- inside: sending

    def _start_response(self, call: OpenCall) -> None:
        call.is_responding = True
        self._engine.write_headers(call.stream_id, _RESPONSE_HEADERS)
        self._scanner.on_response()

    def _pump_blocked(self, now: float) -> None:
        if self._unsent_bytes:
            self._pump_each(self._engine.calls_with_window(), now)

    def _pump_each(self, blocked: Iterable[OpenCall], now: float) -> None:
        for call in blocked:
            if self._engine.send_window <= 0:
                break
            self._pump(call, now)
            if call.is_over:
                self._events.append(CallAnswered(call))
            elif not call.unsent:
                self._events.append(Writable(call))

    def _pump(self, call: OpenCall, now: float) -> None:
        """Send as many bytes as the windows allow, then the trailers."""
        engine = self._engine
        sent_bytes = 0
        while call.unsent:
            room = engine.room(call)
            if room <= 0:
                break
            piece = call.unsent[0]
            if len(piece) <= room:
                call.unsent.pop(0)
            else:
                view = memoryview(
                    piece
                )  # a copy of the rest for each frame would take seconds for large responses
                call.unsent[0], piece = view[room:], view[:room]
            engine.write_data(call, piece)
            call.unsent_bytes -= len(piece)
            self._unsent_bytes -= len(piece)
            sent_bytes += len(piece)
        if sent_bytes:
            self._scanner.on_response()
        if call.unsent:
            if call.blocked_since is None:
                call.blocked_since = now
                self._note_time(now + self._limits.window_s, call)
            else:
                # A peer that opens its window by a few bytes gains only the time for those bytes.
                call.blocked_since = min(
                    now, call.blocked_since + sent_bytes / self._limits.window_bytes_per_s
                )
            return
        call.blocked_since = None
        if call.is_finishing:
            self._write_trailers(call)

    def _write_trailers(self, call: OpenCall) -> None:
        """End the response of a call whose messages are sent."""
        self._engine.write_headers(call.stream_id, call.trailers, end_stream=True)
        self._scanner.on_response()
        self._stop_receiving(call.stream_id, is_half_closed=call.is_half_closed)
        self._forget(call)

    def _stop_receiving(self, stream_id: int, *, is_half_closed: bool) -> None:
        """The response is complete: the client need not send the rest of its request."""
        if not is_half_closed:
            self._engine.reset(stream_id, NO_ERROR)
        self._engine.close(stream_id, is_reset=not is_half_closed)

    def _abandon(self, call: OpenCall, error: CallError, now: float) -> None:
        """End a call that violated a limit: with a reset if a response message is partly sent, else with the status."""
        if call.unsent:
            self._engine.reset(call.stream_id, CANCEL)
            self._over(call, error.message)
        else:
            self.finish(call, error.status, error.message, now)
            self._events.append(CallEnded(call, error.message))

    # --- inside: time and ends

    def _note_time(self, due: float, call: OpenCall) -> None:
        if len(self._deadlines) > max(self._deadlines_max, DEADLINES_KEPT + 3 * len(self.calls)):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].is_over]
            heapq.heapify(self._deadlines)
            self._deadlines_max = 2 * len(
                self._deadlines
            )  # a window that opens and closes leaves entries, too
        heapq.heappush(self._deadlines, (due, next(self._sequence), call))

    def _tick_calls(self, now: float) -> None:
        limits = self._limits
        for _ in range(DEADLINES_AT_ONCE):
            if not self._deadlines or self._deadlines[0][0] > now:
                break
            call = heapq.heappop(self._deadlines)[2]
            if call.is_over:
                continue
            if call.deadline is not None and now >= call.deadline:
                self._abandon(call, CallError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline has passed"), now)
            elif (
                not (call.is_half_closed or call.may_idle or call.is_finishing)
                and now >= call.started + limits.request_s
            ):
                text = f"no whole request within {limits.request_s:g} s"
                self._abandon(call, CallError(GrpcStatus.DEADLINE_EXCEEDED, text), now)
            elif call.blocked_since is not None and now >= call.blocked_since + limits.window_s:
                self._engine.reset(call.stream_id, CANCEL)
                self._over(call, f"the client opened no window for {limits.window_s:g} s")
            elif call.blocked_since is not None:
                self._note_time(call.blocked_since + limits.window_s, call)

    def _drop_unsent(self, call: OpenCall) -> None:
        self._unsent_bytes -= call.unsent_bytes
        call.unsent.clear()
        call.unsent_bytes = 0

    def _forget(self, call: OpenCall) -> None:
        call.is_over = True
        if call.unsent:
            self._drop_unsent(call)
        if call.reader is not None:
            self._receiving_bytes -= call.reader.kept_bytes
            call.reader = None
        self.calls.pop(call.stream_id, None)

    def _over(self, call: OpenCall, reason: str) -> None:
        """A stream has ended before its response was complete."""
        self._engine.close(call.stream_id, is_reset=True)
        self._forget(call)
        self._events.append(CallEnded(call, reason))

    def _fail(self, code: int, reason: str, now: float) -> None:
        """End the connection with GOAWAY: the peer violated a rule of the whole connection."""
        self._write_goaway(code, reason)
        self._end(reason, now)

    def _end(self, reason: str, now: float) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.close_reason = reason
        for call in list(self.calls.values()):
            self._over(call, reason)
        self._deadlines.clear()

    def _write_goaway(self, code: int, reason: str) -> None:
        last = _LAST_STREAM_ID if code == NO_ERROR else self._engine.highest_stream_id
        text = reason.encode()[:GOAWAY_TEXT_BYTES_MAX]
        self._extra_out += _GOAWAY_HEAD.pack(0, 8 + len(text), GOAWAY, 0, 0, last, code) + text

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events
