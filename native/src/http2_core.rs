//! The state of one HTTP/2 connection, what it sends, and how its calls end. aerobee/grpc/http2_connection.py is the reference implementation.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::grpc_message::message_head;
use crate::hpack::{self, Field, HeaderDecoder};
use crate::http2_frame::{
    self as frames, CANCEL, DATA, END_HEADERS, END_STREAM, FrameScanner, HEADERS, Http2Fault, NO_ERROR, ReceiveWindow,
};
use crate::http2_limits::Limits;
use crate::http2_names::{ACCEPTED_ENCODINGS, Names};
use crate::http2_settings::write_settings;
use crate::http2_stream::{Block, Closed, Due, Stream};
use crate::request_headers::{self, SharedTexts};

pub const CONTENT_TYPE: &[u8] = b"application/grpc";
const DEADLINES_KEPT: usize = 1_024; // entries of calls that have ended, before they are dropped
const GOAWAY_TEXT_BYTES_MAX: usize = 256;
const STATUS_MESSAGE_BYTES_MAX: usize = 1_024;
const LAST_STREAM_ID: u32 = (1 << 31) - 1;
const CLOSED_STREAMS_MAX: usize = 1_024; // remembered, so that late frames of them are recognised
const WINDOW_BYTES_AT_FIRST: u32 = 65_535;
const FRAME_BYTES_AT_FIRST: u32 = 16_384;

static RESPONSE_HEADERS: LazyLock<Vec<u8>> = LazyLock::new(|| {
    block(&[(":status", b"200"), ("content-type", CONTENT_TYPE), ("grpc-accept-encoding", ACCEPTED_ENCODINGS.as_bytes())])
});
static HEADERS_OF_TRAILERS_ONLY: LazyLock<Vec<u8>> = LazyLock::new(|| block(&[(":status", b"200"), ("content-type", CONTENT_TYPE)]));
static OK_TRAILERS: LazyLock<Vec<u8>> = LazyLock::new(|| block(&[("grpc-status", b"0")]));

/// A header block without its beginning.
pub fn block(headers: &[(&str, &[u8])]) -> Vec<u8> {
    let mut made = Vec::new();
    for (name, value) in headers {
        hpack::encode(name, value, &mut made);
    }
    made
}

/// Why the work on a frame stops.
pub enum Stop {
    Fault(Http2Fault),
    Python(PyErr),
}

impl From<Http2Fault> for Stop {
    fn from(fault: Http2Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// The state of one connection. http2_receiving.rs takes the peer's frames, this file sends and ends.
pub struct Core {
    pub limits: Limits,
    pub names: Names,
    pub texts: SharedTexts,
    pub scanner: FrameScanner,
    pub decoder: HeaderDecoder,
    pub fields: Vec<Arc<Field>>, // of the last block
    pub input: Vec<u8>,          // the beginning of a frame
    pub out: Vec<u8>,
    pub goaway: Vec<u8>, // sent after `out`
    pub has_preface: bool,
    pub has_more: bool,
    pub is_window_open: bool, // of the connection, or of every stream: since the last look
    pub read_bytes: usize,    // of request messages, and what counts as such, in this go
    pub admitted_stream_id: u32, // the highest one before this go
    pub message_bytes_max: Option<Py<PyAny>>, // of one request message, by a call's path
    pub has_begun: bool, // the peer has opened a stream
    pub has_written_block: bool,
    pub block: Option<Block>,
    pub is_promising: bool, // PUSH_PROMISE came without the end of its block
    pub streams: BTreeMap<u32, Stream>,
    pub closed_streams: VecDeque<(u32, Closed)>,
    pub highest_stream_id: u32,
    pub window: ReceiveWindow,
    pub send_window: i64,
    pub stream_send_window: u32,    // of a new stream
    pub send_frame_bytes_max: u32,
    pub receiving_bytes: usize,
    pub unsent_bytes: usize,
    pub deadlines: BinaryHeap<Reverse<Due>>,
    pub deadlines_max: usize, // before those of calls that have ended are dropped
    pub sequence: u64,
    pub started: f64,
    pub heard: f64,
    pub waiting_since: Option<f64>,
    pub pinged: Option<f64>,
    pub draining_since: Option<f64>,
    pub events: Vec<Py<PyAny>>,
    pub holds_sends: bool,       // whole requests of SendMessage go to `sends`
    pub sends: Vec<(u32, Vec<u8>)>, // stream and request
    pub held: Vec<u32>,             // calls that were not announced because their request may become one of them
    pub is_closed: bool,
    pub close_reason: String,
}

impl Core {
    pub fn new(py: Python<'_>, limits: &Bound<'_, PyAny>, now: f64, message_bytes_max: Option<Py<PyAny>>) -> PyResult<Self> {
        let limits = Limits::read(limits)?;
        let Some(increment) = limits.connection_window_bytes.checked_sub(WINDOW_BYTES_AT_FIRST).filter(|&more| more > 0) else {
            let text = format!("connection_window_bytes is {}, must be above {WINDOW_BYTES_AT_FIRST}", limits.connection_window_bytes);
            return Err(PyValueError::new_err(text));
        };
        let mut window = ReceiveWindow::new(WINDOW_BYTES_AT_FIRST);
        window.open(increment);
        let mut out = Vec::new();
        write_settings(&mut out, &limits);
        frames::write_window(&mut out, 0, increment);
        Ok(Self {
            names: Names::import(py)?,
            texts: SharedTexts::default(),
            scanner: FrameScanner::new(&limits, now),
            decoder: HeaderDecoder::new(limits.header_table_bytes_max, limits.header_list_bytes_max),
            limits,
            fields: Vec::new(),
            input: Vec::new(),
            out,
            goaway: Vec::new(),
            has_preface: false,
            has_more: false,
            is_window_open: false,
            read_bytes: 0,
            admitted_stream_id: 0,
            message_bytes_max,
            has_begun: false,
            has_written_block: false,
            block: None,
            is_promising: false,
            streams: BTreeMap::new(),
            closed_streams: VecDeque::new(),
            highest_stream_id: 0,
            window,
            send_window: WINDOW_BYTES_AT_FIRST.into(),
            stream_send_window: WINDOW_BYTES_AT_FIRST,
            send_frame_bytes_max: FRAME_BYTES_AT_FIRST,
            receiving_bytes: 0,
            unsent_bytes: 0,
            deadlines: BinaryHeap::new(),
            deadlines_max: 0,
            sequence: 0,
            started: now,
            heard: now,
            waiting_since: None,
            pinged: None,
            draining_since: None,
            events: Vec::new(),
            holds_sends: false,
            sends: Vec::new(),
            held: Vec::new(),
            is_closed: false,
            close_reason: String::new(),
        })
    }
}

impl Core {
    /// The windows of one stream, or of all, may be open again.
    pub fn on_window(&mut self, py: Python<'_>, stream_id: Option<u32>, now: f64) -> PyResult<()> {
        if self.unsent_bytes == 0 {
            return Ok(());
        }
        let blocked: Vec<u32> = match stream_id {
            Some(stream_id) => vec![stream_id],
            None => self.streams.keys().copied().collect(),
        };
        for stream_id in blocked {
            if self.send_window <= 0 {
                break;
            }
            let Some(stream) = self.streams.get(&stream_id).filter(|stream| !stream.unsent.is_empty()) else { continue };
            let (call, is_known) = (stream.call.clone_ref(py), stream.unannounced.is_none());
            self.pump(stream_id, now);
            if !is_known {
                continue;
            }
            let event = match self.streams.get(&stream_id) {
                None => &self.names.call_answered,
                Some(stream) if stream.unsent.is_empty() => &self.names.writable,
                Some(_) => continue,
            };
            self.events.push(event.call1(py, (call,))?);
        }
        Ok(())
    }

    pub fn write_headers(&mut self, stream_id: u32, flags: u8, block: &[u8]) {
        let begun = std::mem::replace(&mut self.has_written_block, true);
        let first: &[u8] = if begun { &[] } else { &[hpack::NO_TABLE] };
        frames::write(&mut self.out, HEADERS, flags | END_HEADERS, stream_id, &[first, block]);
    }

    pub fn write_response_headers(&mut self, stream_id: u32) {
        let Some(stream) = self.streams.get_mut(&stream_id).filter(|stream| !stream.is_responding) else { return };
        stream.is_responding = true;
        self.write_headers(stream_id, 0, &RESPONSE_HEADERS);
        self.scanner.on_response();
    }

    /// End a call with this status; `message` in UTF-8.
    pub fn finish_stream(&mut self, stream_id: u32, status: i64, message: &[u8], now: f64) {
        let Some(stream) = self.streams.get_mut(&stream_id).filter(|stream| !stream.is_finishing) else { return };
        stream.is_finishing = true;
        stream.call.get().finishing.store(true, Ordering::Relaxed);
        if !stream.is_responding {
            stream.trailers.extend_from_slice(&HEADERS_OF_TRAILERS_ONLY);
        }
        if status == 0 && message.is_empty() {
            stream.trailers.extend_from_slice(&OK_TRAILERS);
        } else {
            hpack::encode("grpc-status", status.to_string().as_bytes(), &mut stream.trailers);
        }
        if !message.is_empty() {
            hpack::encode("grpc-message", &status_message(message), &mut stream.trailers);
        }
        self.pump(stream_id, now);
    }

    /// Send as much as the windows allow, and the trailers behind it.
    pub fn pump(&mut self, stream_id: u32, now: f64) {
        let Some(stream) = self.streams.get_mut(&stream_id) else { return };
        let mut sent_bytes = 0;
        while let Some(piece) = stream.unsent.front() {
            let room = self.send_window.min(stream.send_window).min(self.send_frame_bytes_max.into());
            let Some(room) = usize::try_from(room).ok().filter(|&room| room > 0) else { break };
            let rest = &piece[stream.first_sent_bytes..];
            let sent = rest.len().min(room);
            frames::write(&mut self.out, DATA, 0, stream_id, &[&rest[..sent]]);
            if sent == rest.len() {
                stream.unsent.pop_front();
                stream.first_sent_bytes = 0;
            } else {
                stream.first_sent_bytes += sent;
            }
            stream.unsent_bytes -= sent;
            self.unsent_bytes -= sent;
            self.send_window -= sent as i64;
            stream.send_window -= sent as i64;
            sent_bytes += sent;
        }
        if sent_bytes > 0 {
            self.scanner.on_response();
        }
        if !stream.unsent.is_empty() {
            match stream.blocked_since {
                None => {
                    stream.blocked_since = Some(now);
                    self.note_time(now + self.limits.window_s, stream_id);
                }
                // A window of a few bytes now and then buys no more time than those bytes are worth.
                Some(since) => {
                    stream.blocked_since = Some(now.min(since + sent_bytes as f64 / self.limits.window_bytes_per_s));
                }
            }
            return;
        }
        stream.blocked_since = None;
        if stream.is_finishing {
            let (trailers, is_half_closed) = (std::mem::take(&mut stream.trailers), stream.is_half_closed);
            self.write_headers(stream_id, END_STREAM, &trailers);
            self.scanner.on_response();
            let closed = self.stop_receiving(stream_id, is_half_closed);
            self.forget(stream_id, closed);
        }
    }

    /// Send one response message, or keep it until the windows allow it. False when the next one has to wait for that.
    pub fn send(&mut self, py: Python<'_>, stream_id: u32, data: &[u8], now: f64) -> PyResult<bool> {
        if self.streams.get(&stream_id).is_none_or(|stream| stream.is_finishing) {
            return Ok(true);
        }
        self.write_response_headers(stream_id);
        let Some(stream) = self.streams.get_mut(&stream_id) else { return Ok(true) };
        let head = message_head(data.len());
        let length = head.len() + data.len();
        let room = self.send_window.min(stream.send_window).min(self.send_frame_bytes_max.into());
        if stream.unsent.is_empty() && length as i64 <= room {
            frames::write(&mut self.out, DATA, 0, stream_id, &[&head, data]);
            self.send_window -= length as i64;
            stream.send_window -= length as i64;
            self.scanner.on_response();
            return Ok(true);
        }
        stream.unsent.push_back([head.as_slice(), data].concat());
        stream.unsent_bytes += length;
        self.unsent_bytes += length;
        self.pump(stream_id, now);
        let is_blocked = self.streams.get(&stream_id).is_some_and(|stream| !stream.unsent.is_empty());
        if is_blocked && self.unsent_bytes > self.limits.unsent_bytes_end {
            frames::write_reset(&mut self.out, stream_id, CANCEL);
            self.over(py, stream_id, Closed::Reset, "the client takes its responses too slowly")?;
            return Ok(true);
        }
        Ok(!is_blocked || self.unsent_bytes <= self.limits.unsent_bytes_max)
    }

    /// Whether a call may send a message of as many bytes without waiting for a window.
    pub fn can_send(&self, stream_id: u32, byte_count: usize) -> bool {
        let Some(stream) = self.streams.get(&stream_id) else { return false };
        let room = self.send_window.min(stream.send_window).min(self.send_frame_bytes_max.into());
        stream.unsent.is_empty() && room >= byte_count as i64
    }

    /// Tell Python of the calls that were kept from it and whose requests have not come, except the newest `spared` of them.
    pub fn announce_held(&mut self, py: Python<'_>, spared: usize) -> PyResult<()> {
        let count = self.held.len().saturating_sub(spared);
        for stream_id in self.held.drain(..count).collect::<Vec<u32>>() {
            if self.streams.get(&stream_id).is_some_and(|stream| !stream.is_half_closed) {
                self.announce(py, stream_id)?;
            }
        }
        Ok(())
    }

    /// Tell Python of a call that it does not know yet.
    pub fn announce(&mut self, py: Python<'_>, stream_id: u32) -> PyResult<()> {
        let Some(stream) = self.streams.get_mut(&stream_id) else { return Ok(()) };
        let Some(fields) = stream.unannounced.take() else { return Ok(()) };
        let metadata = request_headers::metadata(py, &fields, &mut self.texts)?;
        let _ = stream.call.get().metadata.set(py, metadata.unbind()); // no event had named the call
        self.events.push(self.names.call_started.call1(py, (&stream.call,))?);
        Ok(())
    }

    /// The response is complete: the client need not send the rest of its request.
    pub fn stop_receiving(&mut self, stream_id: u32, is_half_closed: bool) -> Closed {
        if is_half_closed {
            return Closed::Ended;
        }
        frames::write_reset(&mut self.out, stream_id, NO_ERROR);
        Closed::Reset
    }

    /// End a call that broke a rule: by a reset when a response message is sent in part, else with its status.
    pub fn abandon(&mut self, py: Python<'_>, stream_id: u32, status: i64, text: &str, now: f64) -> PyResult<()> {
        let Some(stream) = self.streams.get(&stream_id) else { return Ok(()) };
        if !stream.unsent.is_empty() {
            frames::write_reset(&mut self.out, stream_id, CANCEL);
            return self.over(py, stream_id, Closed::Reset, text);
        }
        let (call, is_known) = (stream.call.clone_ref(py), stream.unannounced.is_none());
        self.finish_stream(stream_id, status, text.as_bytes(), now);
        if is_known {
            self.events.push(self.names.call_ended.call1(py, (call, text))?);
        }
        Ok(())
    }
}

impl Core {
    pub fn note_time(&mut self, at: f64, stream_id: u32) {
        if self.deadlines.len() > self.deadlines_max.max(DEADLINES_KEPT + 3 * self.streams.len()) {
            self.deadlines.retain(|Reverse(due)| self.streams.contains_key(&due.stream_id));
            self.deadlines_max = 2 * self.deadlines.len(); // a window that opens and closes leaves entries, too
        }
        self.sequence += 1;
        self.deadlines.push(Reverse(Due { at, sequence: self.sequence, stream_id }));
    }

    /// Remember how a stream was closed.
    pub fn close(&mut self, stream_id: u32, closed: Closed) {
        if self.closed_streams.len() >= CLOSED_STREAMS_MAX {
            self.closed_streams.pop_front();
        }
        self.closed_streams.push_back((stream_id, closed));
    }

    pub fn forget(&mut self, stream_id: u32, closed: Closed) {
        let Some(stream) = self.streams.remove(&stream_id) else { return };
        stream.call.get().over.store(true, Ordering::Relaxed);
        self.unsent_bytes -= stream.unsent_bytes;
        self.receiving_bytes -= stream.reader.kept_bytes();
        self.close(stream_id, closed);
    }

    pub fn over(&mut self, py: Python<'_>, stream_id: u32, closed: Closed, reason: &str) -> PyResult<()> {
        let Some(stream) = self.streams.get(&stream_id) else { return Ok(()) };
        let (call, is_known) = (stream.call.clone_ref(py), stream.unannounced.is_none());
        self.forget(stream_id, closed);
        if is_known {
            self.events.push(self.names.call_ended.call1(py, (call, reason))?);
        }
        Ok(())
    }

    /// The peer broke something that concerns the whole connection.
    pub fn fail(&mut self, py: Python<'_>, fault: Http2Fault) -> PyResult<()> {
        if fault.is_in_goaway {
            self.write_goaway(fault.code, &fault.reason);
        } else {
            frames::write_goaway(&mut self.out, self.highest_stream_id, fault.code, b"");
        }
        self.end(py, &fault.reason)
    }

    pub fn end(&mut self, py: Python<'_>, reason: &str) -> PyResult<()> {
        if self.is_closed {
            return Ok(());
        }
        self.is_closed = true;
        self.close_reason = reason.to_owned();
        while let Some(&stream_id) = self.streams.keys().next() {
            self.over(py, stream_id, Closed::Reset, reason)?;
        }
        self.deadlines.clear();
        Ok(())
    }

    pub fn write_goaway(&mut self, code: u32, reason: &str) {
        let last = if code == NO_ERROR { LAST_STREAM_ID } else { self.highest_stream_id };
        let text = &reason.as_bytes()[..reason.len().min(GOAWAY_TEXT_BYTES_MAX)];
        frames::write_goaway(&mut self.goaway, last, code, text);
    }
}

/// Percent-encode a message for the trailer grpc-message: aerobee/grpc/status.py.
fn status_message(text: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut found = Vec::with_capacity(text.len());
    for &byte in &text[..text.len().min(STATUS_MESSAGE_BYTES_MAX)] {
        if (0x20..=0x7e).contains(&byte) && byte != b'%' {
            found.push(byte);
        } else {
            found.extend_from_slice(&[b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
    found
}
