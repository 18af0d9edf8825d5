//! What the frames of a peer do to a connection. Source: RFC 9113; aerobee/grpc/http2_engine.py.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::grpc_message::{HEAD_BYTES as MESSAGE_HEAD_BYTES, MessageReader, message_head};
use crate::hpack::{Field, HpackError};
use crate::http2_call::Call;
use crate::http2_core::{CONTENT_TYPE, Core, Stop, block};
use crate::http2_frame::{
    self as frames, ACK, ALTSVC, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, Frame, GOAWAY,
    HEADERS, Http2Fault, PING, PREFACE, PRIORITY, PROTOCOL_ERROR, PUSH_PROMISE, REFUSED_STREAM, RST_STREAM, ReceiveWindow, SETTINGS,
    STREAM_CLOSED, WINDOW_UPDATE,
};
use crate::http2_names::{INTERNAL, RESOURCE_EXHAUSTED, Refused, message_of, status_of};
use crate::http2_settings::{INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, check_setting, increment_of, opened, settings_of};
use crate::http2_stream::{Block, Closed, Stream, check_dependency, content_length};
use crate::request_headers::{self, RequestHeaders};

const CONTINUATIONS_MAX: usize = 63;
// What is done in one go: as in the reference implementation.
const FRAMES_AT_ONCE: usize = 256;
const REQUEST_BYTES_AT_ONCE: usize = 4 << 20;
const MESSAGE_BYTES: usize = 2_048;
const HEADER_BYTE_BYTES: usize = 64;

const CANCELLED: &str = "the client cancelled the call";
const SEND_MESSAGE_PATH: &[u8] = b"/apache.rocketmq.v2.MessagingService/SendMessage";

impl Core {
    /// Whether the connection preface is complete; it is taken off `rest`.
    pub fn take_preface(&mut self, py: Python<'_>, rest: &mut &[u8]) -> PyResult<bool> {
        let begun = PREFACE.len().min(rest.len());
        if rest[..begun] != PREFACE[..begun] {
            let fault = Http2Fault::limit(PROTOCOL_ERROR, "HTTP/2 client preface string missing or corrupt");
            self.fail(py, fault)?;
            *rest = &[];
            return Ok(false);
        }
        if begun < PREFACE.len() {
            return Ok(false);
        }
        *rest = &rest[PREFACE.len()..];
        self.has_preface = true;
        Ok(true)
    }

    pub fn take_frames(&mut self, py: Python<'_>, rest: &mut &[u8], now: f64) -> Result<(), Stop> {
        self.has_more = true;
        self.read_bytes = 0;
        self.admitted_stream_id = self.highest_stream_id;
        for _ in 0..FRAMES_AT_ONCE {
            if self.awaits_admission(rest) {
                break;
            }
            let frame = if self.is_closed { None } else { self.scanner.next_frame(rest, &self.limits, now)? };
            let Some(frame) = frame else {
                self.has_more = false;
                break;
            };
            let frame_bytes = frames::HEAD_BYTES + frame.payload.len();
            *rest = &rest[frame_bytes..];
            self.waiting_since = None;
            self.interpret(py, frame, now)?;
            if matches!(frame.kind, HEADERS | CONTINUATION) {
                self.read_bytes += HEADER_BYTE_BYTES * frame_bytes;
            }
            if self.read_bytes >= REQUEST_BYTES_AT_ONCE {
                break;
            }
        }
        if std::mem::take(&mut self.is_window_open) && !self.is_closed {
            self.on_window(py, None, now)?;
        }
        Ok(())
    }

    /// Whether the next frame may have a compressed message of a call that the service does not know yet: nothing is inflated for it.
    fn awaits_admission(&self, rest: &[u8]) -> bool {
        frames::data_stream(rest).is_some_and(|stream_id| {
            stream_id > self.admitted_stream_id && self.streams.get(&stream_id).is_some_and(|stream| stream.reader.may_be_packed())
        })
    }

    fn interpret(&mut self, py: Python<'_>, frame: Frame<'_>, now: f64) -> Result<(), Stop> {
        if frame.kind == GOAWAY {
            frame.check_goaway()?;
            self.draining_since.get_or_insert(now);
            if self.streams.is_empty() {
                self.end(py, "the peer said goodbye")?;
            }
            return Ok(());
        }
        frame.check_stream()?;
        if self.is_promising {
            // Its payload is checked first: a wrong size has another error code.
            self.check_payload(&frame)?;
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "a header block is interrupted by another frame").into());
        }
        match frame.kind {
            DATA => self.on_data(py, frame, now),
            HEADERS => self.on_headers_frame(py, frame, now),
            CONTINUATION => self.on_continuation(py, frame, now),
            PRIORITY => Ok(check_dependency(frame.stream_id, Some(frame.priority()?))?),
            RST_STREAM => self.on_reset(py, frame),
            SETTINGS => self.on_settings(frame),
            PING => {
                let data = frame.exactly::<8>()?;
                if frame.flags & ACK == 0 {
                    frames::write(&mut self.out, PING, ACK, 0, &[data]);
                }
                Ok(())
            }
            WINDOW_UPDATE => self.on_window_update(py, frame, now),
            PUSH_PROMISE => {
                frame.check_promise()?;
                if frame.flags & END_HEADERS != 0 {
                    return Err(Http2Fault::protocol(PROTOCOL_ERROR, "a client cannot promise a stream").into());
                }
                self.is_promising = true;
                Ok(())
            }
            ALTSVC => {
                frame.check_alternative()?;
                self.has_begun = true;
                Ok(())
            }
            _ => Ok(()), // extensions
        }
    }

    fn check_payload(&self, frame: &Frame<'_>) -> Result<(), Http2Fault> {
        match frame.kind {
            DATA => frame.data().map(|_| ()),
            HEADERS => frame.block().map(|_| ()),
            PRIORITY => frame.priority().map(|_| ()),
            RST_STREAM => frame.exactly::<4>().map(|_| ()),
            SETTINGS => settings_of(frame).map(|_| ()),
            PUSH_PROMISE => frame.check_promise(),
            PING => frame.exactly::<8>().map(|_| ()),
            WINDOW_UPDATE => increment_of(frame).map(|_| ()),
            ALTSVC => frame.check_alternative(),
            _ => Ok(()),
        }
    }

    /// Where a stream is that the peer names: None for one that has ended; a fault for one that was never opened.
    fn known(&self, stream_id: u32) -> Result<bool, Http2Fault> {
        if self.streams.contains_key(&stream_id) {
            return Ok(true);
        }
        if stream_id % 2 == 0 || stream_id > self.highest_stream_id {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("stream {stream_id} was never opened")));
        }
        Ok(false)
    }

    fn check_begun(&self) -> Result<(), Http2Fault> {
        if self.has_begun { Ok(()) } else { Err(Http2Fault::protocol(PROTOCOL_ERROR, "the first frames are not of a connection")) }
    }

    fn on_headers_frame(&mut self, py: Python<'_>, frame: Frame<'_>, now: f64) -> Result<(), Stop> {
        let (data, depends_on) = frame.block()?;
        if frame.flags & END_HEADERS != 0 {
            return self.on_headers(py, frame.stream_id, frame.flags, depends_on, data, now);
        }
        let (stream_id, flags, data) = (frame.stream_id, frame.flags, data.to_vec());
        self.block = Some(Block { stream_id, flags, depends_on, data, continuation_count: 0 });
        Ok(())
    }

    fn on_continuation(&mut self, py: Python<'_>, frame: Frame<'_>, now: f64) -> Result<(), Stop> {
        let Some(mut block) = self.block.take().filter(|block| block.stream_id == frame.stream_id) else {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "a header block is continued on another stream").into());
        };
        block.data.extend_from_slice(frame.payload);
        block.continuation_count += 1;
        if block.continuation_count > CONTINUATIONS_MAX {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "a header block has too many frames").into());
        }
        if frame.flags & END_HEADERS != 0 {
            return self.on_headers(py, block.stream_id, block.flags, block.depends_on, &block.data, now);
        }
        self.block = Some(block);
        Ok(())
    }

    fn on_headers(
        &mut self,
        py: Python<'_>,
        stream_id: u32,
        flags: u8,
        depends_on: Option<u32>,
        data: &[u8],
        now: f64,
    ) -> Result<(), Stop> {
        let is_open = self.streams.contains_key(&stream_id);
        if !is_open && self.streams.len() >= self.limits.concurrent_streams_max as usize {
            let reason = format!("more than {} calls are open", self.limits.concurrent_streams_max);
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, reason).into());
        }
        let mut fields = std::mem::take(&mut self.fields);
        let decoded = self.decoder.decode(data, &mut fields);
        self.fields = fields;
        decoded.map_err(|error| match error {
            HpackError::TooLarge => Http2Fault::protocol(ENHANCE_YOUR_CALM, "a header list is too large"),
            HpackError::Malformed => Http2Fault::protocol(PROTOCOL_ERROR, "a header block is malformed"),
        })?;
        self.has_begun = true;
        if is_open {
            return self.on_trailers(py, stream_id, flags, depends_on, now);
        }
        if stream_id % 2 == 0 {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("stream {stream_id} is not of a client")).into());
        }
        if stream_id <= self.highest_stream_id {
            return self.on_headers_of_closed(stream_id).map_err(Stop::from);
        }
        self.highest_stream_id = stream_id;
        self.check_informational()?;
        let length = content_length(&self.fields)?;
        check_dependency(stream_id, depends_on)?;
        self.on_request(py, stream_id, flags & END_STREAM != 0, length, now)
    }

    fn on_headers_of_closed(&mut self, stream_id: u32) -> Result<(), Http2Fault> {
        match self.closed_streams.iter().find(|(closed, _)| *closed == stream_id) {
            Some((_, Closed::Reset)) => {
                frames::write_reset(&mut self.out, stream_id, STREAM_CLOSED);
                Ok(())
            }
            Some((_, Closed::Ended)) => Err(Http2Fault::protocol(STREAM_CLOSED, format!("stream {stream_id} has ended"))),
            None => Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("stream {stream_id} is below an earlier one"))),
        }
    }

    fn on_trailers(
        &mut self,
        py: Python<'_>,
        stream_id: u32,
        flags: u8,
        depends_on: Option<u32>,
        now: f64,
    ) -> Result<(), Stop> {
        self.check_informational()?;
        self.announce(py, stream_id)?;
        let Some(stream) = self.streams.get_mut(&stream_id) else { return Ok(()) };
        if stream.is_half_closed {
            frames::write_reset(&mut self.out, stream_id, STREAM_CLOSED);
            return self.reset_locally(py, stream_id, CANCELLED, now);
        }
        stream.half_close(flags & END_STREAM != 0);
        stream.length = content_length(&self.fields)?;
        if !stream.is_half_closed {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "trailers do not end their stream").into());
        }
        check_dependency(stream_id, depends_on)?;
        if !request_headers::are_trailers(&self.fields) {
            frames::write_reset(&mut self.out, stream_id, PROTOCOL_ERROR);
            return self.reset_locally(py, stream_id, "the trailers of the request are malformed", now);
        }
        self.on_half_close(py, stream_id, now)
    }

    /// Responses of HTTP/1 that precede the real one: no client sends them.
    fn check_informational(&self) -> Result<(), Http2Fault> {
        let mut pseudo = self.fields.iter().take_while(|field| field.name.first() == Some(&b':'));
        match pseudo.find(|field| field.name == b":status") {
            Some(field) if field.value.first() == Some(&b'1') => {
                Err(Http2Fault::protocol(PROTOCOL_ERROR, "a request is an informational response"))
            }
            _ => Ok(()),
        }
    }

    fn on_request(&mut self, py: Python<'_>, stream_id: u32, ends: bool, length: Option<u64>, now: f64) -> Result<(), Stop> {
        let fields = std::mem::take(&mut self.fields);
        let done = match RequestHeaders::read(&fields) {
            None => {
                frames::write_reset(&mut self.out, stream_id, PROTOCOL_ERROR);
                self.close(stream_id, Closed::Reset);
                self.scanner.count_reset(now).map_err(Stop::from)
            }
            Some(_) if self.draining_since.is_some() => {
                frames::write_reset(&mut self.out, stream_id, REFUSED_STREAM);
                self.close(stream_id, Closed::Reset);
                Ok(())
            }
            Some(request) if request.method != b"POST" || !request.content_type.starts_with(CONTENT_TYPE) => {
                let status: &[u8] = if request.method == b"POST" { b"415" } else { b"405" };
                self.write_headers(stream_id, END_STREAM, &block(&[(":status", status)]));
                let closed = self.stop_receiving(stream_id, ends);
                self.close(stream_id, closed);
                Ok(())
            }
            Some(request) => self.start_call(py, stream_id, &request, &fields, ends, length, now),
        };
        self.fields = fields;
        done
    }

    #[allow(clippy::too_many_arguments)]
    fn start_call(
        &mut self,
        py: Python<'_>,
        stream_id: u32,
        request: &RequestHeaders<'_>,
        fields: &[Arc<Field>],
        ends: bool,
        length: Option<u64>,
        now: f64,
    ) -> Result<(), Stop> {
        let path = self.texts.get(py, request.path);
        let message_bytes_max = match &self.message_bytes_max {
            Some(bytes_max) => bytes_max.call1(py, (&path,))?.extract::<usize>(py)?.min(self.limits.message_bytes_max),
            None => self.limits.message_bytes_max,
        };
        let mut timeout_fault = None;
        let deadline = match request.timeout.map(|text| (text, request_headers::seconds(text))) {
            None => None,
            Some((_, Some(seconds))) => Some(now + seconds),
            Some((text, None)) => {
                timeout_fault = self.names.parse_timeout.call1(py, (request_headers::text(py, text),)).err();
                None
            }
        };
        let call = Call {
            stream_id,
            path: path.unbind(),
            metadata: PyOnceLock::new(),
            started: now,
            deadline,
            half_closed: AtomicBool::new(ends),
            over: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
        };
        let may_be_packed = request.encoding.is_some_and(|name| matches!(name, b"gzip" | b"deflate"));
        let is_held = self.holds_sends && !ends && !may_be_packed && timeout_fault.is_none() && request.path == SEND_MESSAGE_PATH;
        let call = Py::new(py, call)?;
        let started = if is_held || timeout_fault.is_some() { None } else { Some(call.clone_ref(py)) };
        if !is_held {
            let _ = call.get().metadata.set(py, request_headers::metadata(py, fields, &mut self.texts)?.unbind()); // the first time
        }
        let stream = Stream {
            call,
            unannounced: is_held.then(|| fields.to_vec()),
            window: ReceiveWindow::new(self.limits.stream_window_bytes),
            send_window: self.stream_send_window.into(),
            length,
            received_bytes: 0,
            reader: MessageReader::new(may_be_packed),
            message_bytes_max,
            encoding: request.encoding.map(|name| request_headers::text(py, name).unbind()),
            may_idle: false,
            is_half_closed: ends,
            is_responding: false,
            is_finishing: false,
            trailers: Vec::new(),
            unsent: VecDeque::new(),
            first_sent_bytes: 0,
            unsent_bytes: 0,
            blocked_since: None,
        };
        self.streams.insert(stream_id, stream);
        if let Some(fault) = timeout_fault {
            if !fault.is_instance_of::<PyValueError>(py) {
                return Err(fault.into());
            }
            let text = fault.value(py).to_string();
            self.finish_stream(stream_id, INTERNAL, text.as_bytes(), now);
            return Ok(());
        }
        if let Some(deadline) = deadline {
            self.note_time(deadline, stream_id);
        }
        self.note_time(now + self.limits.request_s, stream_id);
        if is_held {
            self.held.push(stream_id);
        }
        if let Some(call) = started {
            self.events.push(self.names.call_started.call1(py, (call,))?);
        }
        if ends { self.on_half_close(py, stream_id, now) } else { Ok(()) }
    }

    fn on_data(&mut self, py: Python<'_>, frame: Frame<'_>, now: f64) -> Result<(), Stop> {
        let data = frame.data()?;
        self.check_begun()?;
        let (stream_id, counted) = (frame.stream_id, frame.payload.len());
        self.window.receive(counted)?;
        let is_known = self.known(stream_id)?;
        let stream = self.streams.get_mut(&stream_id).filter(|stream| !stream.is_half_closed);
        let Some(stream) = stream else {
            self.give_back(counted);
            frames::write_reset(&mut self.out, stream_id, STREAM_CLOSED);
            return if is_known { self.reset_locally(py, stream_id, CANCELLED, now) } else { Ok(()) };
        };
        stream.window.receive(counted)?;
        stream.received_bytes += data.len() as u64;
        stream.half_close(frame.flags & END_STREAM != 0);
        let received = stream.received_bytes;
        if stream.length.is_some_and(|length| length < received || stream.is_half_closed && length != received) {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "a request has not as many bytes as its content-length").into());
        }
        let increment = if counted > 0 { stream.window.take(counted) } else { None };
        let (is_half_closed, is_finishing) = (stream.is_half_closed, stream.is_finishing);
        let is_unannounced = stream.unannounced.is_some();
        if counted > 0 {
            self.give_back(counted);
        }
        if let Some(increment) = increment {
            frames::write_window(&mut self.out, stream_id, increment);
        }
        if is_finishing {
            return Ok(());
        }
        if is_unannounced {
            if is_half_closed && self.hold_send(stream_id, data) {
                return Ok(());
            }
            self.announce(py, stream_id)?;
        }
        self.take_messages(py, stream_id, data, now)?;
        if is_half_closed { self.on_half_close(py, stream_id, now) } else { Ok(()) }
    }

    /// Keep a whole request of SendMessage for the fast path. False: it is none, and nothing has happened.
    fn hold_send(&mut self, stream_id: u32, data: &[u8]) -> bool {
        let Some(stream) = self.streams.get(&stream_id).filter(|stream| stream.reader.kept_bytes() == 0) else { return false };
        let Some((head, message)) = data.split_first_chunk::<MESSAGE_HEAD_BYTES>() else { return false };
        if !self.holds_sends || *head != message_head(message.len()) || message.len() > stream.message_bytes_max {
            return false;
        }
        self.read_bytes += MESSAGE_BYTES + message.len();
        self.sends.push((stream_id, message.to_vec()));
        true
    }

    /// Let the services have a request that was kept.
    pub fn release_send(&mut self, py: Python<'_>, stream_id: u32, message: &[u8]) -> PyResult<()> {
        self.announce(py, stream_id)?;
        let Some(stream) = self.streams.get(&stream_id) else { return Ok(()) };
        self.events.push(self.names.request_message.call1(py, (&stream.call, PyBytes::new(py, message)))?);
        self.events.push(self.names.request_ended.call1(py, (&stream.call,))?);
        Ok(())
    }

    /// Open the connection's window again.
    fn give_back(&mut self, counted: usize) {
        if let Some(increment) = self.window.take(counted) {
            frames::write_window(&mut self.out, 0, increment);
        }
    }

    fn take_messages(&mut self, py: Python<'_>, stream_id: u32, data: &[u8], now: f64) -> Result<(), Stop> {
        let Some(stream) = self.streams.get_mut(&stream_id) else { return Ok(()) };
        let bytes_max = stream.message_bytes_max;
        let before = stream.reader.kept_bytes();
        let (inflate, call_error) = (&self.names.inflate, &self.names.call_error);
        let encoding = stream.encoding.as_ref();
        let mut messages: Vec<Py<PyBytes>> = Vec::new();
        let fed = stream.reader.feed(data, bytes_max, |cut| {
            messages.push(message_of(py, cut, inflate, encoding, bytes_max, call_error)?);
            Ok(())
        });
        self.receiving_bytes -= before;
        self.receiving_bytes += stream.reader.kept_bytes();
        let refused = match fed {
            Ok(()) if self.receiving_bytes > self.limits.receiving_bytes_max => {
                let bytes_max = self.limits.receiving_bytes_max;
                let text = format!("requests of more than {bytes_max} bytes are incomplete on this connection");
                Some((RESOURCE_EXHAUSTED, text))
            }
            Ok(()) => None,
            Err(Refused::Python(error)) => return Err(error.into()),
            Err(Refused::Status(status, text)) => Some((status, text)),
            Err(Refused::Message(fault)) => Some(status_of(py, fault, encoding, bytes_max)?),
        };
        if let Some((status, text)) = refused {
            return Ok(self.abandon(py, stream_id, status, &text, now)?);
        }
        for message in messages {
            self.read_bytes += MESSAGE_BYTES + message.as_bytes(py).len();
            self.events.push(self.names.request_message.call1(py, (&stream.call, message))?);
        }
        Ok(())
    }

    fn on_half_close(&mut self, py: Python<'_>, stream_id: u32, now: f64) -> Result<(), Stop> {
        let Some(stream) = self.streams.get(&stream_id).filter(|stream| !stream.is_finishing) else { return Ok(()) };
        if stream.reader.kept_bytes() > 0 {
            return Ok(self.abandon(py, stream_id, INTERNAL, "the request ends in the middle of a message", now)?);
        }
        self.events.push(self.names.request_ended.call1(py, (&stream.call,))?);
        Ok(())
    }

    fn on_reset(&mut self, py: Python<'_>, frame: Frame<'_>) -> Result<(), Stop> {
        frame.exactly::<4>()?;
        self.check_begun()?;
        if self.streams.contains_key(&frame.stream_id) {
            self.over(py, frame.stream_id, Closed::Reset, CANCELLED)?;
        }
        Ok(())
    }

    /// A stream was reset because of what the peer sent on it: it may provoke that as often as it may reset.
    fn reset_locally(&mut self, py: Python<'_>, stream_id: u32, reason: &str, now: f64) -> Result<(), Stop> {
        self.scanner.count_reset(now)?;
        Ok(self.over(py, stream_id, Closed::Reset, reason)?)
    }

    fn on_settings(&mut self, frame: Frame<'_>) -> Result<(), Stop> {
        let settings = settings_of(&frame)?;
        if frame.flags & ACK != 0 {
            return Ok(());
        }
        for &(name, value) in &settings {
            check_setting(name, value)?;
        }
        for &(name, value) in &settings {
            match name {
                INITIAL_WINDOW_SIZE => {
                    let delta = i64::from(value) - i64::from(self.stream_send_window);
                    self.stream_send_window = value;
                    for stream in self.streams.values_mut() {
                        stream.send_window = opened(stream.send_window, delta)?;
                    }
                }
                MAX_FRAME_SIZE => self.send_frame_bytes_max = value,
                _ => {}
            }
        }
        frames::write(&mut self.out, SETTINGS, ACK, 0, &[]);
        self.is_window_open = true;
        Ok(())
    }

    fn on_window_update(&mut self, py: Python<'_>, frame: Frame<'_>, now: f64) -> Result<(), Stop> {
        let increment = i64::from(increment_of(&frame)?);
        if frame.stream_id == 0 {
            self.send_window = opened(self.send_window, increment)?;
            self.is_window_open = true;
            return Ok(());
        }
        self.known(frame.stream_id)?;
        let Some(stream) = self.streams.get_mut(&frame.stream_id) else { return Ok(()) };
        match opened(stream.send_window, increment) {
            Ok(window) => {
                stream.send_window = window;
                Ok(self.on_window(py, Some(frame.stream_id), now)?)
            }
            Err(_) => {
                frames::write_reset(&mut self.out, frame.stream_id, FLOW_CONTROL_ERROR);
                self.reset_locally(py, frame.stream_id, CANCELLED, now)
            }
        }
    }
}
