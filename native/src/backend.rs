//! Backend: whole bursts of ordinary frames (aerobee/broker/fastpath/python_backend.py is its Python counterpart; the handlers
//! are the reference of both).
//!
//! Cuts frames, reads headers and asks the families that have registered for a request's code, in their order; what none of
//! them takes is for the handlers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyList, PyTuple};

use crate::constants::{FLAG_ONEWAY, REPLY_BYTES_MAX};
use crate::appender::Appender;
use crate::batch::Batches;
use crate::field::{AllFields, Fields, Value};
use crate::grpc_send::GrpcSends;
use crate::guard::{Asked, Guard, Shown};
use crate::delayed::Delayed;
use crate::latency::Steps;
use crate::look_ahead::{Ahead, Cut, Reach, cut, int};
use crate::options::OptionSends;
use crate::outcome::{Outcome, Stop, note_failed_callback};
use crate::pull::Pulls;
use crate::requests::Requests;
use crate::results::{self, BurstResult, Pulled};
use crate::send::Sends;
use crate::send_back::SendBacks;
use crate::shared::{Burst, FrameHandler, Form, Gate, Gates, Identity, Request, Shared};
use crate::transaction::Transactions;
use crate::window::Window;
use crate::{binary_header, json_header};


/// State between bursts.
pub struct State {
    pub shared: Shared,
    pub put_steps: Steps,
    pub get_steps: Steps,
    pub requests: Requests,
    pub grpc_sends: Option<GrpcSends>,
    guard: Option<Guard>,
    reach: Reach,
    handlers: Vec<Box<dyn FrameHandler>>,
}

#[pyclass(frozen, module = "aerobee_native")]
pub struct Backend {
    state: Mutex<State>,
    forgets_topics: AtomicBool,
    forgets_authorizations: AtomicBool,
    forgets_grants: Arc<AtomicBool>,
}

#[pymethods]
impl Backend {
    #[new]
    #[pyo3(signature = (*, store, find_topic, find_authorization, store_host, own_properties, reply_fields, reply_ext,
        waiting, special_properties, supports_long_poll, permits, put_steps, get_steps, put_took, get_took, request_rows, guard=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        store: Bound<'_, PyAny>,
        find_topic: Py<PyAny>,
        find_authorization: Py<PyAny>,
        store_host: Vec<u8>,
        own_properties: String,
        reply_fields: String,
        reply_ext: Bound<'_, PyDict>,
        waiting: Py<PyAny>,
        special_properties: HashSet<String>,
        supports_long_poll: bool,
        permits: Bound<'_, PyAny>,
        put_steps: Bound<'_, PyAny>,
        get_steps: Bound<'_, PyAny>,
        put_took: Py<PyAny>,
        get_took: Py<PyAny>,
        request_rows: Bound<'_, PyAny>,
        guard: Option<(Py<PyAny>, Vec<(i64, Vec<String>)>)>,
    ) -> PyResult<Self> {
        let forgets_grants = Arc::new(AtomicBool::new(false));
        let guard = guard
            .map(|(find_grant, guarded)| Guard::new(find_grant, guarded, Arc::clone(&forgets_grants)))
            .transpose()?;
        let identity = Identity::new(own_properties, reply_fields, &reply_ext)?;
        let appender = Appender::new(&store, store_host, waiting)?;
        let handlers: Vec<Box<dyn FrameHandler>> =
            vec![Box::new(Sends), Box::new(Batches::new()), Box::new(Pulls::new(find_authorization, supports_long_poll))];
        let shared = Shared::new(appender, identity, find_topic, special_properties, Some(Window::new(&permits)?));
        Ok(Self {
            state: Mutex::new(State {
                shared,
                put_steps: Steps::new(&put_steps, put_took)?,
                get_steps: Steps::new(&get_steps, get_took)?,
                requests: Requests::new(&request_rows)?,
                grpc_sends: None,
                guard,
                reach: Reach::default(),
                handlers,
            }),
            forgets_topics: AtomicBool::new(false),
            forgets_authorizations: AtomicBool::new(false),
            forgets_grants,
        })
    }

    /// Serve messages with a delay level or a time, too. `hooks` are DelayHooks; the topics are configs.
    /// `send_backs` are SendBackHooks: messages that a consumer sends back are served, too.
    #[pyo3(signature = (hooks, *, schedule_topic, timer_topic, broker_name, delays_ms, special_properties, send_backs))]
    #[allow(clippy::too_many_arguments)]
    fn serve_delayed(
        &self,
        py: Python<'_>,
        hooks: Py<PyAny>,
        schedule_topic: Py<PyAny>,
        timer_topic: Py<PyAny>,
        broker_name: String,
        delays_ms: Vec<i64>,
        special_properties: HashSet<String>,
        send_backs: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let send_backs = send_backs.map(SendBacks::new);
        let family =
            Delayed::new(hooks, schedule_topic, timer_topic, broker_name, delays_ms, special_properties, send_backs);
        self.register(py, Box::new(family))
    }

    /// Serve half messages and their ends, too. `hooks` are TransactionHooks; the topic is a config.
    #[pyo3(signature = (hooks, *, half_topic, special_properties))]
    fn serve_transactions(
        &self,
        py: Python<'_>,
        hooks: Py<PyAny>,
        half_topic: Py<PyAny>,
        special_properties: HashSet<String>,
    ) -> PyResult<()> {
        self.register(py, Box::new(Transactions::new(hooks, half_topic, special_properties)))
    }

    /// Serve sends with an ack level, a dedup key or a priority, too. `hooks` are OptionHooks.
    #[pyo3(signature = (hooks, *, find_leveled, special_properties))]
    fn serve_options(
        &self,
        py: Python<'_>,
        hooks: Py<PyAny>,
        find_leveled: Py<PyAny>,
        special_properties: HashSet<String>,
    ) -> PyResult<()> {
        self.register(py, Box::new(OptionSends::new(hooks, find_leveled, special_properties)))
    }

    /// Serve SendMessage of gRPC, too. `queue_count_of` is called with a topic's name; no user may set the properties `reserved`.
    #[pyo3(signature = (*, queue_count_of, reserved))]
    fn serve_grpc_sends(&self, py: Python<'_>, queue_count_of: Py<PyAny>, reserved: HashSet<String>) -> PyResult<()> {
        let mut state = self.state(py).ok_or_else(|| PyValueError::new_err("the fast path is busy"))?;
        state.grpc_sends = Some(GrpcSends::new(queue_count_of, reserved));
        Ok(())
    }

    /// Messages stored and delivered since the last call.
    fn take_totals<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>)> {
        let Ok(mut state) = self.state.try_lock() else { return Ok((PyList::empty(py), PyList::empty(py))) };
        let shared = &mut state.shared;
        Ok((shared.appender.topics.take_totals(py)?, shared.handed_out.take(py)?))
    }

    /// Topics have changed: look everything up again.
    fn forget_topics(&self) {
        self.forgets_topics.store(true, Ordering::Relaxed);
    }

    /// Groups, subscriptions or offsets have changed: ask again who may pull.
    fn forget_authorizations(&self) {
        self.forgets_authorizations.store(true, Ordering::Relaxed);
    }

    /// Users or permissions have changed: ask again, from the next frame on. From any thread.
    fn forget_grants(&self) {
        self.forgets_grants.store(true, Ordering::Release);
    }

    /// Serve ordinary frames from `position` on. `host` is whom a guard checks, "" for a peer that is not checked.
    #[pyo3(signature = (data, position, born_host, now_ms, takes_sends, takes_pulls, host=None))]
    #[allow(clippy::too_many_arguments)]
    fn burst(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        position: usize,
        born_host: &[u8],
        now_ms: i64,
        takes_sends: bool,
        takes_pulls: bool,
        host: Option<&str>,
    ) -> PyResult<Py<BurstResult>> {
        let Some(mut state) = self.state(py) else { return nothing(py, position) };
        let gates = Gates { sends: takes_sends, pulls: takes_pulls };
        let mut burst = state.shared.begin(py, born_host, now_ms, gates)?;
        burst.asked = Asked::of(host);
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return state.serve(burst, bytes.as_bytes(), position, 0);
        }
        // A frame was cut in two, and bytes are still to be appended in place: copy the whole frames only.
        match data.cast::<PyByteArray>().map_err(PyErr::from).and_then(|data| whole_frames(data, position)) {
            Ok(bytes) => state.serve(burst, &bytes, 0, position),
            Err(error) => {
                state.shared.keep(std::mem::take(&mut burst.replies));
                Err(error)
            }
        }
    }
}

impl Backend {
    /// The state for one burst. None: taken already, for a callback of a burst came back here; nothing is served then.
    pub fn state(&self, py: Python<'_>) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.try_lock().ok()?;
        if self.forgets_topics.swap(false, Ordering::Relaxed) {
            state.shared.forget_topics(py);
            state.handlers.iter_mut().for_each(|handler| handler.forget_topics());
        }
        if self.forgets_authorizations.swap(false, Ordering::Relaxed) {
            state.handlers.iter_mut().for_each(|handler| handler.forget_authorizations());
        }
        Some(state)
    }

    fn register(&self, py: Python<'_>, handler: Box<dyn FrameHandler>) -> PyResult<()> {
        let mut state = self.state(py).ok_or_else(|| PyValueError::new_err("the fast path is busy"))?;
        state.handlers.push(handler);
        Ok(())
    }
}

/// Result of a burst that served no frame: all frames are left to the handlers.
fn nothing(py: Python<'_>, position: usize) -> PyResult<Py<BurstResult>> {
    let result = BurstResult {
        replies: PyBytes::new(py, b"").unbind(),
        used: results::int(py, position),
        is_slow: PyBool::new(py, true).to_owned().unbind(),
        deferred_replies: PyBytes::new(py, b"").unbind(),
        deferred_answers: PyTuple::empty(py).into_any().unbind(),
        leveled_replies: PyTuple::empty(py).into_any().unbind(),
        stored_count: results::int(py, 0),
        pulled: PyTuple::empty(py).into_any().unbind(),
        fault: py.None(),
    };
    Py::new(py, result)
}

/// Copy the whole frames from `position` on, and the first incomplete or invalid one.
fn whole_frames(data: &Bound<'_, PyByteArray>, position: usize) -> PyResult<Vec<u8>> {
    let window = Window::new(data.as_any())?;
    let size = data.len();
    let mut end = position.min(size);
    while size - end >= 8 {
        let Some(words) = window.read::<4>(end as i64) else { break };
        let length = u32::from_be_bytes(words) as usize;
        if length + 4 > size - end {
            break;
        }
        end += length + 4;
    }
    // Eight more bytes: the words of the next frame show that it is incomplete or invalid.
    end = size.min(end + 8);
    let mut bytes = Vec::new();
    let position = position.min(size);
    let _ = window.append_to(position as i64, end - position, &mut bytes);
    Ok(bytes)
}

impl State {
    /// Serve a burst to its end. `shift` converts positions in `data` to the caller's: it is added to them.
    ///
    /// Raises errors of the burst's end: no request of the burst may be answered then, because the store may not find
    /// the stored messages. An earlier failure after bytes were written is the result's fault.
    fn serve(
        &mut self,
        mut burst: Burst<'_>,
        data: &[u8],
        position: usize,
        shift: usize,
    ) -> PyResult<Py<BurstResult>> {
        let py = burst.writing.py;
        let began = Instant::now();
        let (used, is_slow, fault) = self.frames(&mut burst, data, position);
        let replies = std::mem::take(&mut burst.replies);
        let ended = self.end(&mut burst);
        let pulled = results::pulled_if_any(py, &burst.pulled)?;
        let deferred_answers = results::answers(py, &mut burst.deferred_answers)?;
        let leveled_replies = results::leveled(py, &mut burst.leveled)?;
        let stored_count = *ended.as_ref().unwrap_or(&0);
        let result = ended.map(|_| BurstResult {
            replies: PyBytes::new(py, &replies).unbind(),
            used: results::int(py, used + shift),
            is_slow: PyBool::new(py, is_slow).to_owned().unbind(),
            deferred_replies: PyBytes::new(py, &burst.held).unbind(),
            deferred_answers,
            leveled_replies,
            stored_count: results::int(py, stored_count),
            pulled,
            fault: fault.map_or_else(|| py.None(), |error| error.into_value(py).into_any()),
        });
        self.shared.keep(replies);
        let result = Py::new(py, result?)?;
        // Frames without a host are pulls that waited: how long is no latency.
        if !burst.writing.born_host.is_empty() {
            self.took(py, began.elapsed(), burst.requests_before, &burst.pulled)?;
        } else {
            self.requests.forget();
        }
        Ok(result)
    }

    /// Record the duration of the sends since that request count, and of the pulls that found messages.
    pub fn took(&mut self, py: Python<'_>, took: Duration, requests: u64, pulled: &[Pulled]) -> PyResult<()> {
        self.requests.took(took);
        self.put_steps.add(py, took, self.shared.appender.topics.request_count - requests)?;
        self.get_steps.add(py, took, pulled.iter().filter(|result| result.held.is_none()).count() as u64)
    }

    /// Work deferred to the end of a burst. Returns how many requests have stored something.
    pub fn end(&mut self, burst: &mut Burst<'_>) -> PyResult<u64> {
        let py = burst.writing.py;
        let ended = self.shared.appender.end(&mut burst.writing);
        for handler in &mut self.handlers {
            if let Err(error) = handler.end(py) {
                note_failed_callback(py, error, "the end of a burst")?;
            }
        }
        let requests = self.shared.appender.topics.request_count - burst.requests_before;
        Ok(if ended? { requests.max(1) } else { 0 })
    }

    /// Cut frames and serve each; return the first position that was not served, whether a whole frame stands there, and
    /// what failed. A frame that failed counts as used: no handler may serve it again.
    pub fn frames(&mut self, burst: &mut Burst<'_>, data: &[u8], position: usize) -> (usize, bool, Option<PyErr>) {
        if self.guard.is_some() && !matches!(burst.asked, Asked::Nothing) {
            return self.guarded_frames(burst, data, position);
        }
        let mut at = position;
        while burst.pulled_bytes < REPLY_BYTES_MAX && let Some(Cut { kind, end, body_at }) = cut(data, at) {
            if body_at > end {
                return (at, true, None);
            }
            match self.frame(burst, kind, &data[at..end], body_at - at) {
                Ok(()) => at = end,
                Err(Stop::Slow) => return (at, true, None),
                Err(Stop::Fault(fault)) => return (end, false, Some(fault)),
            }
        }
        (at, false, None)
    }

    /// As `frames`, where there is a guard.
    fn guarded_frames(&mut self, burst: &mut Burst<'_>, data: &[u8], position: usize) -> (usize, bool, Option<PyErr>) {
        let (mut ahead, mut at) = (Ahead::new(&mut self.reach), position);
        let stopped = loop {
            if burst.pulled_bytes >= REPLY_BYTES_MAX || cut(data, at).is_none() {
                break (at, false, None);
            }
            let Some(guard) = &mut self.guard else { break (at, true, None) };
            let Some((shown, all)) = ahead.next(guard, &burst.asked, data, at) else { break (at, true, None) };
            let end = at + shown.frame.len();
            match self.guarded_frame(burst, shown, all) {
                Ok(()) => at = end,
                Err(Stop::Slow) => break (at, true, None),
                Err(Stop::Fault(fault)) => break (end, false, Some(fault)),
            }
        };
        ahead.done(&mut self.reach);
        stopped
    }

    /// Admit one frame through the guard, and serve it.
    fn guarded_frame<'a>(&mut self, burst: &mut Burst<'_>, shown: &Shown<'a>, all: &AllFields<'a>) -> Outcome<()> {
        let appender = &mut self.shared.appender;
        let guard = self.guard.as_mut().ok_or(Stop::Slow)?;
        let mut fields = Fields::new();
        guard.admit(burst.writing.py, &appender.errors, &burst.asked, shown, all, &mut appender.has_called, &mut fields)?;
        let Shown { code, flag, opaque, is_binary, body, frame, .. } = *shown;
        let form = if is_binary { Form::Binary } else { Form::Json };
        self.request(burst, &Request { form, code, flag, opaque, version: None, fields: &fields, body, frame })
    }

    /// Serve one frame, whose body begins at `body_at`.
    fn frame(&mut self, burst: &mut Burst<'_>, kind: u8, frame: &[u8], body_at: usize) -> Outcome<()> {
        let (header, body) = (&frame[8..body_at], &frame[body_at..]);
        let mut fields = Fields::new();
        match kind {
            0 => {
                let read = json_header::parse(header, &mut fields).filter(|read| read.has_fields).ok_or(Stop::Slow)?;
                let int = |value| int(value).ok_or(Stop::Slow);
                let (code, flag, opaque) = (int(read.code)?, int(read.flag)?, int(read.opaque)?);
                let version = match read.version {
                    Value::Missing => Some(0),
                    Value::Integer(version) => i32::try_from(version).ok().map(i64::from),
                    _ => None,
                };
                self.request(burst, &Request { form: Form::Json, code, flag, opaque, version, fields: &fields, body, frame })
            }
            1 => {
                let mut replaced = binary_header::Replaced::new();
                let mut read = binary_header::parse(header, &replaced, &mut fields).ok_or(Stop::Slow)?;
                let mut mended = Fields::new();
                let mut fields = &fields;
                if read.mended > 0 {
                    binary_header::mend(header, &mut replaced);
                    read = binary_header::parse(header, &replaced, &mut mended).ok_or(Stop::Slow)?;
                    fields = &mended;
                }
                let (code, flag, opaque) = (read.code.into(), read.flag.into(), read.opaque.into());
                self.request(burst, &Request { form: Form::Binary, code, flag, opaque, version: None, fields, body, frame })
            }
            _ => Err(Stop::Slow),
        }
    }

    /// Ask the handlers, in their order.
    fn request(&mut self, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        if (request.flag != 0 && request.flag != FLAG_ONEWAY) || i32::try_from(request.opaque).is_err() {
            return Err(Stop::Slow);
        }
        let (held_bytes, pulled_count) = (burst.held.len(), burst.pulled.len());
        for handler in &mut self.handlers {
            let is_open = match handler.gate() {
                Gate::Sends => burst.gates.sends,
                Gate::Pulls => burst.gates.pulls,
            };
            if !is_open || !handler.codes().contains(&request.code) {
                continue;
            }
            match handler.serve(&mut self.shared, burst, request) {
                Err(Stop::Slow) => {}
                served => {
                    self.shared.appender.has_called |= !handler.is_silent();
                    let waits = burst.pulled.len() > pulled_count && burst.pulled.last().is_some_and(|pull| pull.held.is_some());
                    if served.is_ok() && !waits {
                        let held = match burst.last_leveled.take() {
                            Some(number) => Some(&mut burst.leveled[number].answers),
                            None => (burst.held.len() > held_bytes).then_some(&mut burst.deferred_answers),
                        };
                        self.requests.note(request.code, request.flag != 0, held);
                    }
                    return served;
                }
            }
        }
        Err(Stop::Slow)
    }
}
