//! The server's end of one HTTP/2 connection that carries gRPC calls. aerobee/grpc/http2_connection.py is its reference implementation: the
//! same bytes and times give the same events and the same bytes, which tests/fuzz/http2_differential.py holds.
//!
//! Invariants: bytes of the peer never raise; each call that has started ends exactly once; what waits for the peer's windows
//! is bounded in bytes and in time. Python code runs only where events are made, and it never calls back.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::backend::{Backend, State};
use crate::grpc_send::RESPONSE_BYTES_MAX;
use crate::constants::GRPC_CLIENT_ID_CHARS_MAX;
use crate::hpack::Field;
use crate::http2_call::Call;
use crate::http2_core::{Core, Stop};
use crate::http2_frame::{self as frames, CANCEL, ENHANCE_YOUR_CALM, Http2Fault, NO_ERROR, PING, PROTOCOL_ERROR};
use crate::http2_names::{DEADLINE_EXCEEDED, OK, general};
use crate::http2_stream::Closed;
use crate::outcome;
use crate::shared::{Burst, Gates};

const DEADLINES_AT_ONCE: usize = 512;
const HELD_CALLS_MAX: usize = 64; // whose requests may be among the bytes that wait; no bound counts these calls
const OUT_BYTES_KEPT: usize = 4_096; // of an idle connection, for what it sends next
const PING_DATA: &[u8; 8] = b"aerobee\0";

/// What one read did (Http2Burst of aerobee/grpc/core.py).
#[pyclass(frozen, get_all, module = "aerobee_native")]
#[derive(Default)]
pub struct Http2Burst {
    pub events: Vec<Py<PyAny>>,
    pub stored_count: u64,
    pub fault: Option<Py<PyAny>>,
    /// The fault is that of the burst's end.
    pub is_lost: bool,
}

#[pyclass(module = "aerobee_native")]
pub struct Http2Connection {
    core: Core,
}

#[pymethods]
impl Http2Connection {
    #[new]
    #[pyo3(signature = (limits, now, message_bytes_max=None))]
    fn new(py: Python<'_>, limits: &Bound<'_, PyAny>, now: f64, message_bytes_max: Option<Py<PyAny>>) -> PyResult<Self> {
        Core::new(py, limits, now, message_bytes_max).map(|core| Self { core })
    }

    /// Take what the peer sent; return what happened. Send outgoing() afterwards, and call proceed() while has_more.
    fn receive(&mut self, py: Python<'_>, data: PyBackedBytes, now: f64) -> PyResult<Vec<Py<PyAny>>> {
        if self.core.is_closed {
            return Ok(Vec::new());
        }
        self.core.heard = now;
        self.core.pinged = None;
        self.go(py, &data, now)
    }

    /// Interpret what waits, but not more than is done in one go; return what happened.
    fn proceed(&mut self, py: Python<'_>, now: f64) -> PyResult<Vec<Py<PyAny>>> {
        if self.core.is_closed { Ok(Vec::new()) } else { self.go(py, b"", now) }
    }

    /// As receive() or, without bytes, proceed(); ordinary requests of SendMessage are served here, in one burst of `backend`. Once one
    /// of them is left to the services, all that follow it are: they are stored in the order in which they came.
    #[allow(clippy::too_many_arguments)]
    fn serve(
        &mut self,
        py: Python<'_>,
        data: PyBackedBytes,
        now: f64,
        backend: &Bound<'_, Backend>,
        born_host: &[u8],
        now_ms: i64,
        pick: u32,
    ) -> PyResult<Http2Burst> {
        let mut burst = Http2Burst::default();
        if self.core.is_closed {
            return Ok(burst);
        }
        if !data.is_empty() {
            self.core.heard = now;
            self.core.pinged = None;
        }
        self.core.holds_sends = true;
        let gone = self.go(py, &data, now);
        self.core.holds_sends = false;
        let sends = std::mem::take(&mut self.core.sends);
        burst.events = gone?;
        if !sends.is_empty() {
            self.serve_held(py, sends, now, backend.get(), (born_host, now_ms, pick), &mut burst)?;
        }
        self.core.announce_held(py, if self.core.has_more { HELD_CALLS_MAX } else { 0 })?;
        burst.events.append(&mut self.core.events);
        Ok(burst)
    }

    /// Whether bytes of the peer wait for proceed().
    #[getter]
    fn has_more(&self) -> bool {
        self.core.has_more && !self.core.is_closed
    }

    /// The bytes that are to be sent to the peer now.
    fn outgoing<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let goaway = std::mem::take(&mut self.core.goaway);
        self.core.out.extend_from_slice(&goaway);
        let found = PyBytes::new(py, &self.core.out);
        if self.core.out.capacity() > OUT_BYTES_KEPT {
            self.core.out = Vec::new();
        } else {
            self.core.out.clear();
        }
        found
    }

    #[getter]
    fn is_idle(&self) -> bool {
        self.core.streams.is_empty()
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.core.is_closed
    }

    #[getter]
    fn close_reason(&self) -> &str {
        &self.core.close_reason
    }

    #[getter]
    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = PyDict::new(py);
        for (stream_id, stream) in &self.core.streams {
            found.set_item(stream_id, &stream.call)?;
        }
        Ok(found)
    }

    #[getter]
    fn receiving_bytes(&self) -> usize {
        self.core.receiving_bytes
    }

    #[getter]
    fn unsent_bytes(&self) -> usize {
        self.core.unsent_bytes
    }

    #[getter]
    fn kept_bytes(&self) -> usize {
        self.core.input.len()
    }

    /// Send the response headers now, before the first message.
    #[pyo3(signature = (call, *, may_idle=false))]
    fn start_response(&mut self, call: &Bound<'_, Call>, may_idle: bool) {
        let stream_id = call.get().stream_id;
        let Some(stream) = self.core.streams.get_mut(&stream_id) else { return };
        stream.may_idle |= may_idle;
        self.core.write_response_headers(stream_id);
    }

    /// Send one response message. False when the caller has to wait for Writable before it sends the next one.
    fn send_message(&mut self, py: Python<'_>, call: &Bound<'_, Call>, data: PyBackedBytes, now: f64) -> PyResult<bool> {
        self.core.send(py, call.get().stream_id, &data, now)
    }

    /// End the call with this status, after what is unsent.
    fn finish(&mut self, call: &Bound<'_, Call>, status: i64, message: &Bound<'_, PyString>, now: f64) -> PyResult<()> {
        let text = message.call_method1("encode", ("utf-8", "replace"))?.extract::<PyBackedBytes>()?;
        self.core.finish_stream(call.get().stream_id, status, &text, now);
        Ok(())
    }

    /// End the call with RST_STREAM, and drop what is unsent.
    fn cancel(&mut self, py: Python<'_>, call: &Bound<'_, Call>, reason: &str) -> PyResult<()> {
        let stream_id = call.get().stream_id;
        if self.core.streams.contains_key(&stream_id) {
            frames::write_reset(&mut self.core.out, stream_id, CANCEL);
            self.core.over(py, stream_id, Closed::Reset, reason)?;
        }
        Ok(())
    }

    /// Latest time for the next tick(); infinity without pending time-outs.
    fn due(&self) -> f64 {
        let limits = &self.core.limits;
        let mut due = f64::INFINITY;
        if !self.core.streams.is_empty() && self.core.pinged.is_none() {
            due = self.core.heard + limits.keepalive_s;
        }
        if !self.core.has_preface {
            due = due.min(self.core.started + limits.preface_s);
        }
        let since = [
            (self.core.waiting_since, limits.frame_s),
            (self.core.pinged, limits.keepalive_timeout_s),
            (self.core.draining_since, limits.drain_s),
        ];
        for (since, seconds) in since {
            if let Some(since) = since {
                due = due.min(since + seconds);
            }
        }
        match self.core.deadlines.peek() {
            Some(Reverse(first)) => due.min(first.at),
            None => due,
        }
    }

    /// Do what is due: deadlines, limits of time, keep-alive. Send outgoing() afterwards.
    fn tick(&mut self, py: Python<'_>, now: f64) -> PyResult<Vec<Py<PyAny>>> {
        if self.core.is_closed {
            return Ok(Vec::new());
        }
        let limits = &self.core.limits;
        let is_past = |since: Option<f64>, seconds: f64| since.is_some_and(|since| now >= since + seconds);
        if !self.core.has_preface && now >= self.core.started + limits.preface_s {
            let reason = format!("no connection preface within {} s", general(py, limits.preface_s)?);
            self.core.fail(py, Http2Fault::limit(PROTOCOL_ERROR, reason))?;
        } else if is_past(self.core.waiting_since, limits.frame_s) {
            let reason = format!("a frame or header block is incomplete for {} s", general(py, limits.frame_s)?);
            self.core.fail(py, Http2Fault::limit(ENHANCE_YOUR_CALM, reason))?;
        } else if is_past(self.core.pinged, limits.keepalive_timeout_s) {
            let reason = format!("no answer to a PING within {} s", general(py, limits.keepalive_timeout_s)?);
            self.core.fail(py, Http2Fault::limit(NO_ERROR, reason))?;
        } else if self.core.draining_since.is_some() && (self.core.streams.is_empty() || is_past(self.core.draining_since, limits.drain_s)) {
            self.core.end(py, "the server is shutting down")?;
        } else {
            self.tick_calls(py, now)?;
            if !self.core.streams.is_empty() && self.core.pinged.is_none() && now >= self.core.heard + self.core.limits.keepalive_s {
                self.core.pinged = Some(now);
                frames::write(&mut self.core.out, PING, 0, 0, &[PING_DATA]);
            }
        }
        Ok(std::mem::take(&mut self.core.events))
    }

    /// Tell the peer to use another connection; calls that are open continue for at most `drain_s`.
    fn go_away(&mut self, py: Python<'_>, now: f64) -> PyResult<()> {
        if self.core.is_closed || self.core.draining_since.is_some() {
            return Ok(());
        }
        self.core.draining_since = Some(now);
        if self.core.has_preface {
            self.core.write_goaway(NO_ERROR, "the server is shutting down");
        }
        if self.core.streams.is_empty() { self.core.end(py, "the server is shutting down") } else { Ok(()) }
    }

    /// The transport is gone: end all calls.
    #[pyo3(signature = (now, reason="the connection is lost"))]
    fn lost(&mut self, py: Python<'_>, now: f64, reason: &str) -> PyResult<Vec<Py<PyAny>>> {
        let _ = now; // as in the reference implementation, for which no time matters either
        self.core.end(py, reason)?;
        Ok(std::mem::take(&mut self.core.events))
    }
}

impl Http2Connection {
    /// Serve requests of SendMessage that were kept.
    fn serve_held(
        &mut self,
        py: Python<'_>,
        sends: Vec<(u32, Vec<u8>)>,
        now: f64,
        backend: &Backend,
        (born_host, now_ms, pick): (&[u8], i64, u32),
        result: &mut Http2Burst,
    ) -> PyResult<()> {
        let mut sends = sends.into_iter();
        let mut left = None; // the first one for the services
        if let Some(mut state) = backend.state(py)
            && state.grpc_sends.is_some()
        {
            let began = Instant::now();
            let state = &mut *state;
            let gates = Gates { sends: true, pulls: false };
            let mut burst = state.shared.begin(py, born_host, now_ms, gates)?;
            left = self.serve_in(state, &mut burst, &mut sends, now, pick, result);
            // Whatever has happened: what is stored becomes known to the store.
            match state.end(&mut burst) {
                Ok(stored_count) => result.stored_count = stored_count,
                Err(error) => {
                    result.fault = Some(error.into_value(py).into_any());
                    result.is_lost = true;
                }
            }
            state.shared.keep(std::mem::take(&mut burst.replies));
            state.took(py, began.elapsed(), burst.requests_before, &[])?;
        }
        for (stream_id, request) in left.into_iter().chain(sends) {
            self.core.release_send(py, stream_id, &request)?;
        }
        Ok(())
    }

    /// Serve requests in a burst, up to the first one that is left or that fails; returns the former.
    fn serve_in(
        &mut self,
        state: &mut State,
        burst: &mut Burst<'_>,
        sends: &mut std::vec::IntoIter<(u32, Vec<u8>)>,
        now: f64,
        pick: u32,
        result: &mut Http2Burst,
    ) -> Option<(u32, Vec<u8>)> {
        let py = burst.writing.py;
        let mut response = Vec::new();
        for (number, (stream_id, request)) in (0u32..).zip(sends) {
            response.clear();
            let Some(stream) = self.core.streams.get(&stream_id).filter(|stream| !stream.is_finishing) else { continue };
            let served = match &state.grpc_sends {
                Some(grpc)
                    if burst.gates.sends
                        && stream.unannounced.as_ref().is_some_and(|fields| has_plain_client_id(fields))
                        && self.core.can_send(stream_id, RESPONSE_BYTES_MAX) =>
                {
                    grpc.serve(&mut state.shared, burst, pick.wrapping_add(number), &request, &mut response)
                }
                _ => Err(outcome::Stop::Slow),
            };
            let failed = match served {
                Ok(()) => self.core.send(py, stream_id, &response, now).err(),
                Err(outcome::Stop::Slow) => return Some((stream_id, request)),
                Err(outcome::Stop::Fault(fault)) => Some(fault),
            };
            if let Some(error) = failed {
                result.fault = Some(error.into_value(py).into_any());
                return None;
            }
            self.core.finish_stream(stream_id, OK, b"", now);
        }
        None
    }

    fn go(&mut self, py: Python<'_>, data: &[u8], now: f64) -> PyResult<Vec<Py<PyAny>>> {
        self.core.has_more = false;
        let mut input = std::mem::take(&mut self.core.input);
        let received: &[u8] = if input.is_empty() {
            data
        } else {
            input.extend_from_slice(data);
            &input
        };
        let mut rest = received;
        if !self.core.has_preface && !self.core.take_preface(py, &mut rest)? {
            self.core.input = rest.to_vec();
            return Ok(std::mem::take(&mut self.core.events));
        }
        match self.core.take_frames(py, &mut rest, now) {
            Ok(()) => {}
            Err(Stop::Fault(fault)) => self.core.fail(py, fault)?,
            Err(Stop::Python(error)) => return Err(error),
        }
        if !self.core.is_closed {
            if rest.is_empty() && !self.core.scanner.is_in_block() {
                self.core.waiting_since = None;
            } else if self.core.waiting_since.is_none() {
                self.core.waiting_since = Some(now);
            }
            self.core.input = if input.is_empty() {
                rest.to_vec()
            } else {
                let used = input.len() - rest.len();
                if used == input.len() {
                    Vec::new()
                } else {
                    input.drain(..used);
                    input
                }
            };
        }
        Ok(std::mem::take(&mut self.core.events))
    }

    fn tick_calls(&mut self, py: Python<'_>, now: f64) -> PyResult<()> {
        for _ in 0..DEADLINES_AT_ONCE {
            if self.core.deadlines.peek().is_none_or(|Reverse(first)| first.at > now) {
                break;
            }
            let Some(Reverse(due)) = self.core.deadlines.pop() else { break };
            let stream_id = due.stream_id;
            let Some(stream) = self.core.streams.get(&stream_id) else { continue };
            let call = stream.call.get();
            let waits_for_request = !(stream.is_half_closed || stream.may_idle || stream.is_finishing);
            if call.deadline.is_some_and(|deadline| now >= deadline) {
                self.core.abandon(py, stream_id, DEADLINE_EXCEEDED, "the deadline has passed", now)?;
            } else if waits_for_request && now >= call.started + self.core.limits.request_s {
                let text = format!("no whole request within {} s", general(py, self.core.limits.request_s)?);
                self.core.abandon(py, stream_id, DEADLINE_EXCEEDED, &text, now)?;
            } else if let Some(since) = stream.blocked_since {
                let until = since + self.core.limits.window_s;
                if now < until {
                    self.core.note_time(until, stream_id);
                    continue;
                }
                frames::write_reset(&mut self.core.out, stream_id, CANCEL);
                let text = format!("the client opened no window for {} s", general(py, self.core.limits.window_s)?);
                self.core.over(py, stream_id, Closed::Reset, &text)?;
            }
        }
        Ok(())
    }
}

/// Whether the client names itself with a text that needs no further check.
fn has_plain_client_id(fields: &[Arc<Field>]) -> bool {
    let id = fields.iter().rev().find(|field| field.name == b"x-mq-client-id").map(|field| field.value.as_slice());
    id.is_some_and(|id| !id.is_empty() && id.len() <= GRPC_CLIENT_ID_CHARS_MAX && id.iter().all(u8::is_ascii_graphic))
}
