//! LaneCore: whole bursts of ordinary sends and pulls (aerobee/broker/lane/core.py is the definition), and those of
//! transactions (transaction.rs).
//!
//! A burst works on copies of the numbers that the Python objects hold (the log's end, a queue's next offset, ...) and
//! settles them into the objects before any call that may look at them, and at its end.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyAttributeError, PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyTuple};

use crate::delayed::{Levels, Told};
use crate::deliver::Due;
use crate::field::{Fields, Name, Value};
use crate::index::Index;
use crate::pull::{Grants, Waiting};
use crate::text::NameSet;
use crate::topic::{LiveQueue, Queue, Topic};
use crate::transaction::Turn;
use crate::window::Window;
use crate::{binary_header, json_header, send};

const PULL_MESSAGE: i64 = 11;
const SEND_MESSAGE: i64 = 10;
pub const SEND_MESSAGE_V2: i64 = 310;
const SEND_BATCH_MESSAGE: i64 = 320;
const LITE_PULL_MESSAGE: i64 = 361;
pub const FLAG_ONEWAY: i64 = 2;
pub const REPLY_BYTES_MAX: usize = 1 << 20;
pub const REPLIES_BYTES_KEPT: usize = 1 << 18;

/// Why a frame was not served here.
pub enum Stop {
    /// It is for the handlers, which know every error.
    Slow,
    /// Something failed that the definition lets through to its caller as well.
    Fault(PyErr),
}

pub type Outcome<T> = Result<T, Stop>;

/// Which header carried the request; the reply has the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Binary,
}

/// The log's numbers while a burst writes.
pub struct LiveLog {
    pub end: i64,
    pub limit: i64,
    pub base: i64,
    pub window: Window,
    pub is_changed: bool,
}

/// What stays between bursts.
pub struct State {
    pub store: Py<PyAny>,
    pub log_object: Py<PyAny>,
    pub index_object: Py<PyAny>,
    pub index_files: Option<Py<PyList>>, // None: the index is off
    pub index: Index,
    config: Option<(Py<PyAny>, usize)>, // the store's config, and its largest message
    pub find_topic: Py<PyAny>,
    pub waiting: Py<PyAny>,
    pub store_error: Py<PyAny>,
    pub queue_type: Py<PyAny>,
    pub store_host: Vec<u8>,
    pub store_host_hex: Vec<u8>,
    pub own_properties: Vec<u8>,
    pub reply_fields: Vec<u8>,
    pub reply_ext: Vec<(Vec<u8>, Vec<u8>)>,
    pub special: NameSet,
    pub holds: bool,
    pub topics: Vec<Topic>,
    pub topic_numbers: HashMap<Vec<u8>, usize>,
    pub queues: Vec<Queue>,
    pub half: Option<(usize, usize)>, // topic and queue of half messages
    pub levels: Option<Levels>, // None: messages with a delay level are for the handlers
    pub grants: Grants,
    pub scratch: send::Scratch,
}

/// One burst.
pub struct Burst<'py> {
    pub py: Python<'py>,
    pub now_ms: i64,
    pub born_host: Vec<u8>,
    pub max_message_bytes: usize,
    pub log: Option<LiveLog>,
    pub has_index_room: bool,
    pub live_queues: Vec<usize>,
    pub touched: Vec<usize>,
    pub last_offset: i64,
    pub replies: Vec<u8>,
    pub held: Vec<u8>,
    pub gets: Option<Bound<'py, PyList>>,
    pub waiting: Option<Waiting>, // the pull that was just served, when it has to wait
    pub pulled_bytes: usize,
}

#[pyclass(frozen, module = "aerobee_native")]
pub struct LaneCore {
    state: Mutex<State>,
    forgets_topics: AtomicBool,
    forgets_grants: AtomicBool,
}

#[pymethods]
impl LaneCore {
    #[new]
    #[pyo3(signature = (*, store, find_topic, find_grant, store_host, own_properties, reply_fields, reply_ext, waiting,
        special_properties, parks = false))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        store: Bound<'_, PyAny>,
        find_topic: Py<PyAny>,
        find_grant: Py<PyAny>,
        store_host: Vec<u8>,
        own_properties: String,
        reply_fields: String,
        reply_ext: Bound<'_, PyDict>,
        waiting: Py<PyAny>,
        special_properties: HashSet<String>,
        parks: bool,
    ) -> PyResult<Self> {
        let mut ext = Vec::new();
        for (name, value) in &reply_ext {
            ext.push((name.extract::<String>()?.into_bytes(), value.extract::<String>()?.into_bytes()));
        }
        let hex: String = store_host.iter().map(|byte| format!("{byte:02X}")).collect();
        let index = store.getattr("index")?;
        let files = index.getattr("files")?.cast_into::<PyList>()?.unbind();
        let state = State {
            log_object: store.getattr("log")?.unbind(),
            index_files: index.getattr("is_enabled")?.is_truthy()?.then_some(files),
            index_object: index.unbind(),
            index: Index::default(),
            config: None,
            holds: store.getattr("config")?.getattr("is_sync_flush")?.is_truthy()?,
            grants: Grants::new(find_grant, parks),
            store: store.unbind(),
            find_topic,
            waiting,
            store_error: py.import("aerobee.errors")?.getattr("StoreError")?.unbind(),
            queue_type: py.import("aerobee.store.consume_queue")?.getattr("ConsumeQueue")?.unbind(),
            store_host,
            store_host_hex: hex.into_bytes(),
            own_properties: own_properties.into_bytes(),
            reply_fields: reply_fields.into_bytes(),
            reply_ext: ext,
            special: NameSet::new(special_properties),
            topics: Vec::new(),
            topic_numbers: HashMap::new(),
            queues: Vec::new(),
            half: None,
            levels: None,
            scratch: send::Scratch::default(),
        };
        Ok(Self {
            state: Mutex::new(state),
            forgets_topics: AtomicBool::new(false),
            forgets_grants: AtomicBool::new(false),
        })
    }

    /// Topics have changed: look everything up again.
    fn forget_topics(&self) {
        self.forgets_topics.store(true, Ordering::Relaxed);
        self.forgets_grants.store(true, Ordering::Relaxed);
    }

    /// Groups, subscriptions or offsets have changed: ask again who may pull.
    fn forget_grants(&self) {
        self.forgets_grants.store(true, Ordering::Relaxed);
    }

    /// Serve ordinary frames from `position` on: (replies, used, slow, held, puts, gets).
    fn burst<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        position: usize,
        born_host: &[u8],
        now_ms: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let Some(mut state) = self.state() else {
            let nothing = PyBytes::new(py, b"");
            return (nothing.clone(), position, true, nothing, PyList::empty(py), PyList::empty(py)).into_pyobject(py);
        };
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return state.burst(py, bytes.as_bytes(), position, 0, born_host, now_ms);
        }
        // A frame was cut in two, and bytes are still to be appended in place: copy the whole frames only.
        let bytes = whole_frames(data.cast::<PyByteArray>()?, position)?;
        state.burst(py, &bytes, 0, position, born_host, now_ms)
    }

    /// From now on `transactions` serves messages with a delay level or a time, too. `topic` and `timer_topic` are the
    /// configs of the schedule and the timer topic.
    #[pyo3(signature = (topic, delays_ms, *, timer_topic, broker_name, special_properties))]
    fn serve_levels(
        &self,
        topic: Py<PyAny>,
        delays_ms: Vec<i64>,
        timer_topic: Py<PyAny>,
        broker_name: String,
        special_properties: HashSet<String>,
    ) -> PyResult<()> {
        let mut state = self.state().ok_or_else(|| PyValueError::new_err("the lane is busy"))?;
        let special = NameSet::new(special_properties);
        state.levels = Some(Levels::new(topic, delays_ms, timer_topic, broker_name, special));
        Ok(())
    }

    /// Deliver the records at `sources`, which are due: (count, puts, fault), as DeliveryCore does.
    #[pyo3(signature = (sources, now_ms, *, readable_end, stamp))]
    fn deliver<'py>(
        &self,
        py: Python<'py>,
        sources: Vec<i64>,
        now_ms: i64,
        readable_end: i64,
        stamp: Option<(i64, i64)>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let Some(mut state) = self.state() else {
            return (0, PyList::empty(py), py.None()).into_pyobject(py);
        };
        state.deliver(py, now_ms, &Due { sources, readable_end, stamp })
    }

    /// What the timer has to know of the records at `sources`, as DeliveryCore.look.
    #[pyo3(signature = (sources, *, readable_end, precision_ms))]
    fn look<'py>(
        &self,
        py: Python<'py>,
        sources: Vec<i64>,
        readable_end: i64,
        precision_ms: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let Some(mut state) = self.state() else { return Ok(PyList::empty(py)) };
        state.look(py, &sources, readable_end, precision_ms)
    }

    /// Serve transaction frames from `position` on: (replies, used, held, puts), as TransactionLaneCore does.
    ///
    /// `by_key` are the open transactions; `began`, `committed` and `rolled_back` are called for each that a frame
    /// begins or decides, after its record is in the log. `half_queue` is the ConsumeQueue of half messages. `arrived`
    /// is called with (queue id, its new end, due time) for a delay level that gets messages, `timer_arrived` when the timer
    /// does; `timer_limits` are its precision and its longest delay, ms, None leaves its messages to the handlers.
    #[pyo3(signature = (data, position, born_host, now_ms, *, takes_halves, takes_levels, by_key, half_topic, half_queue,
        began, committed, rolled_back, arrived, timer_arrived, timer_limits))]
    #[allow(clippy::too_many_arguments)]
    fn transactions<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        position: usize,
        born_host: &[u8],
        now_ms: i64,
        takes_halves: bool,
        takes_levels: bool,
        by_key: Bound<'py, PyDict>,
        half_topic: Bound<'py, PyAny>,
        half_queue: Bound<'py, PyAny>,
        began: Bound<'py, PyAny>,
        committed: Bound<'py, PyAny>,
        rolled_back: Bound<'py, PyAny>,
        arrived: Bound<'py, PyAny>,
        timer_arrived: Bound<'py, PyAny>,
        timer_limits: Option<(i64, i64)>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let Some(mut state) = self.state() else {
            let nothing = PyBytes::new(py, b"");
            return (nothing.clone(), position, nothing, PyList::empty(py)).into_pyobject(py);
        };
        let half = state.half(&half_topic, half_queue)?;
        let told =
            Told { arrived, levels: Cell::new(0), timer_arrived, timer: Cell::new(false), timer_limits };
        let turn = Turn { takes_halves, takes_levels, by_key, half, began, committed, rolled_back, told };
        if let Ok(bytes) = data.cast::<PyBytes>() {
            return state.transactions(py, bytes.as_bytes(), position, 0, born_host, now_ms, &turn);
        }
        let bytes = whole_frames(data.cast::<PyByteArray>()?, position)?;
        state.transactions(py, &bytes, 0, position, born_host, now_ms, &turn)
    }
}

impl LaneCore {
    /// The state for one burst. None: taken already, for a callback of a burst came back here; nothing is served then.
    pub fn state(&self) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.try_lock().ok()?;
        if self.forgets_topics.swap(false, Ordering::Relaxed) {
            state.topics.clear();
            state.topic_numbers.clear();
            state.queues.clear();
            state.half = None;
            if let Some(levels) = state.levels.as_mut() {
                levels.forget();
            }
        }
        if self.forgets_grants.swap(false, Ordering::Relaxed) {
            state.grants.forget();
        }
        Some(state)
    }
}

/// Copy the whole frames from `position` on, and what stands in the way of the first that is not.
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
    // Eight more: the words of what follows tell that it is not whole, or not a frame.
    end = size.min(end + 8);
    let mut bytes = Vec::new();
    let position = position.min(size);
    let _ = window.append_to(position as i64, end - position, &mut bytes);
    Ok(bytes)
}

impl State {
    /// `shift` is what is to be added to positions in `data` for those of the caller.
    fn burst<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        position: usize,
        shift: usize,
        born_host: &[u8],
        now_ms: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut burst = self.begin(py, born_host, now_ms)?;
        let (used, slow, fault) = self.frames(&mut burst, data, position, Self::frame);
        let puts = self.end(&mut burst);
        if let Some(fault) = fault {
            return Err(fault);
        }
        let puts = puts?;
        let gets = burst.gets.take().unwrap_or_else(|| PyList::empty(py));
        let answer = (
            PyBytes::new(py, &burst.replies),
            used + shift,
            slow,
            PyBytes::new(py, &burst.held),
            puts,
            gets,
        );
        self.keep(burst.replies);
        answer.into_pyobject(py)
    }

    /// Keep the memory of replies for the next burst, but no more than most need.
    pub fn keep(&mut self, mut replies: Vec<u8>) {
        replies.clear();
        replies.shrink_to(REPLIES_BYTES_KEPT);
        self.scratch.replies = replies;
    }

    /// What one burst begins with.
    pub fn begin<'py>(&mut self, py: Python<'py>, born_host: &[u8], now_ms: i64) -> PyResult<Burst<'py>> {
        let config = self.store.bind(py).getattr(intern!(py, "config"))?;
        let max_message_bytes = match &self.config {
            Some((known, bytes)) if known.is(&config) => *bytes,
            _ => {
                let bytes = config.getattr(intern!(py, "max_message_size"))?.extract()?;
                self.config = Some((config.unbind(), bytes));
                bytes
            }
        };
        Ok(Burst {
            py,
            now_ms,
            born_host: born_host.to_vec(),
            max_message_bytes,
            log: None,
            has_index_room: false,
            live_queues: Vec::new(),
            touched: Vec::new(),
            last_offset: -1,
            replies: std::mem::take(&mut self.scratch.replies),
            held: Vec::new(),
            gets: None,
            waiting: None,
            pulled_bytes: 0,
        })
    }

    /// Cut frames and serve each; return the first position that was not served, whether a whole frame stands there,
    /// and what failed.
    pub fn frames<'py>(
        &mut self,
        burst: &mut Burst<'py>,
        data: &[u8],
        position: usize,
        mut serve: impl FnMut(&mut Self, &mut Burst<'py>, u8, &[u8], &[u8]) -> Outcome<()>,
    ) -> (usize, bool, Option<PyErr>) {
        let mut at = position;
        while let Some(words) = data.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
            if burst.pulled_bytes >= REPLY_BYTES_MAX {
                break;
            }
            let length = u32::from_be_bytes([words[0], words[1], words[2], words[3]]) as usize;
            let end = at + 4 + length;
            if end > data.len() {
                break;
            }
            let header_bytes = u32::from_be_bytes([0, words[5], words[6], words[7]]) as usize;
            let body_at = at + 8 + header_bytes;
            if body_at > end {
                return (at, true, None);
            }
            match serve(self, burst, words[4], &data[at + 8..body_at], &data[body_at..end]) {
                Ok(()) => {
                    if let Some(waiting) = burst.waiting.take() {
                        if let Err(fault) = waiting.note(burst, &data[at..end]) {
                            return (at, true, Some(fault));
                        }
                    }
                    at = end;
                }
                Err(Stop::Slow) => return (at, true, None),
                Err(Stop::Fault(fault)) => return (at, true, Some(fault)),
            }
        }
        (at, false, None)
    }

    pub fn frame(&mut self, burst: &mut Burst<'_>, kind: u8, header: &[u8], body: &[u8]) -> Outcome<()> {
        let mut fields = Fields::new();
        match kind {
            0 => {
                let read = json_header::parse(header, &mut fields).filter(|read| read.has_fields).ok_or(Stop::Slow)?;
                let (code, flag, opaque) = (int(read.code)?, int(read.flag)?, int(read.opaque)?);
                self.request(burst, Form::Json, code, flag, opaque, &fields, body)
            }
            1 => {
                let mut replaced = binary_header::Replaced::new();
                let read = binary_header::parse(header, &replaced, &mut fields).ok_or(Stop::Slow)?;
                let (code, flag, opaque) = (read.code.into(), read.flag.into(), read.opaque.into());
                if read.mended == 0 {
                    return self.request(burst, Form::Binary, code, flag, opaque, &fields, body);
                }
                let mut fields = Fields::new();
                binary_header::mend(header, &mut replaced);
                binary_header::parse(header, &replaced, &mut fields).ok_or(Stop::Slow)?;
                self.request(burst, Form::Binary, code, flag, opaque, &fields, body)
            }
            _ => Err(Stop::Slow),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn request(
        &mut self,
        burst: &mut Burst<'_>,
        form: Form,
        code: i64,
        flag: i64,
        opaque: i64,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Outcome<()> {
        if (flag != 0 && flag != FLAG_ONEWAY) || i32::try_from(opaque).is_err() {
            return Err(Stop::Slow);
        }
        let names = match code {
            SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE => &send::LETTERS,
            SEND_MESSAGE => &send::WORDS,
            PULL_MESSAGE | LITE_PULL_MESSAGE if flag == 0 => {
                return self.pull(burst, form, code, opaque, fields);
            }
            _ => return Err(Stop::Slow),
        };
        if names.iter().any(|name| fields.get(*name).is_missing()) {
            return Err(Stop::Slow);
        }
        let answer = if code == SEND_BATCH_MESSAGE {
            self.batch(burst, names, fields, body)?
        } else if fields.get(names[7]).is_no_batch() {
            self.single(burst, names, fields, body)?
        } else {
            return Err(Stop::Slow);
        };
        if flag == 0 {
            self.reply(burst, form, opaque, &answer);
        }
        Ok(())
    }

    /// Find the topic and the queue that a send names, or leave it to the handlers.
    pub fn place(
        &mut self,
        burst: &mut Burst<'_>,
        topic: Value<'_>,
        queue: Value<'_>,
    ) -> Outcome<(usize, usize)> {
        let py = burst.py;
        let name = topic.text().ok_or(Stop::Slow)?;
        let number = match self.topic_numbers.get(&*name) {
            Some(number) => *number,
            None => {
                let text = std::str::from_utf8(&name).map_err(|_| Stop::Slow)?;
                let config = self.check(py, self.find_topic.bind(py).call1((text,)))?;
                if config.is_none() {
                    return Err(Stop::Slow);
                }
                let topic = self.check(py, Topic::load(py, &config))?;
                self.topics.push(topic);
                self.topic_numbers.insert(name.into_owned(), self.topics.len() - 1);
                self.topics.len() - 1
            }
        };
        let queue_id = queue.number().ok_or(Stop::Slow)?;
        if let Some(text) = queue.text() {
            // Only the canonical text of a number names a queue: "01" is for the handlers.
            if queue_id < 0 || text.len() != decimal_digits(queue_id) {
                return Err(Stop::Slow);
            }
        }
        if let Some(found) = self.topics[number].queues.get(&queue_id) {
            return Ok((number, *found));
        }
        if !(0..self.topics[number].queue_count).contains(&queue_id) {
            return Err(Stop::Slow);
        }
        let topic = self.topics[number].py_name.clone_ref(py);
        let object = self.check(py, self.store.bind(py).call_method1(intern!(py, "queue"), (&topic, queue_id)))?;
        if !object.get_type().is(self.queue_type.bind(py)) {
            return Err(Stop::Slow);
        }
        let id = i32::try_from(queue_id).map_err(|_| Stop::Slow)?;
        let key = (topic, queue_id).into_pyobject(py).map_err(Stop::Fault)?.unbind();
        let reply_start = format!("{{\"code\":0,\"extFields\":{{\"queueId\":\"{id}\",\"transactionId\":\"");
        self.queues.push(Queue { object: object.unbind(), key, id, reply_start: reply_start.into_bytes(), live: None });
        self.topics[number].queues.insert(queue_id, self.queues.len() - 1);
        Ok((number, self.queues.len() - 1))
    }

    /// An error of the store, or one that the definition takes for "not ordinary", leaves the frame to the handlers.
    pub fn check<T>(&self, py: Python<'_>, result: PyResult<T>) -> Outcome<T> {
        result.map_err(|error| {
            let is_expected = error.matches(py, self.store_error.bind(py)).unwrap_or(false)
                || error.is_instance_of::<PyValueError>(py)
                || error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyKeyError>(py)
                || error.is_instance_of::<PyAttributeError>(py)
                || error.is_instance_of::<PyOverflowError>(py);
            if is_expected { Stop::Slow } else { Stop::Fault(error) }
        })
    }

    /// The log's numbers, from the Python object when this burst has none yet.
    pub fn log<'b>(&self, burst: &'b mut Burst<'_>) -> PyResult<&'b mut LiveLog> {
        if burst.log.is_none() {
            let py = burst.py;
            let log = self.log_object.bind(py);
            burst.log = Some(LiveLog {
                end: log.getattr(intern!(py, "end"))?.extract()?,
                limit: log.getattr(intern!(py, "limit"))?.extract()?,
                base: log.getattr(intern!(py, "base"))?.extract()?,
                window: Window::new(&log.getattr(intern!(py, "buffer"))?)?,
                is_changed: false,
            });
        }
        burst.log.as_mut().ok_or_else(|| PyValueError::new_err("the log was not loaded"))
    }

    /// The queue's numbers, from the Python object when this burst has none yet.
    pub fn live<'s>(&'s mut self, burst: &mut Burst<'_>, queue: usize) -> PyResult<&'s mut LiveQueue> {
        let py = burst.py;
        let holds = self.holds;
        let waiting = self.waiting.bind(py);
        let queue_state = &mut self.queues[queue];
        if queue_state.live.is_none() {
            let notify = holds || (!waiting.is_empty()? && waiting.contains(&queue_state.key)?);
            queue_state.live = Some(LiveQueue::load(py, &queue_state.object, notify)?);
            burst.live_queues.push(queue);
        }
        queue_state.live.as_mut().ok_or_else(|| PyValueError::new_err("the queue was not loaded"))
    }

    /// Write the numbers of this burst into the Python objects.
    pub fn settle(&mut self, burst: &mut Burst<'_>) -> PyResult<()> {
        let py = burst.py;
        if let Some(log) = burst.log.as_mut().filter(|log| log.is_changed) {
            log.is_changed = false;
            self.log_object.bind(py).setattr(intern!(py, "end"), log.end)?;
        }
        for number in &burst.live_queues {
            let queue = &mut self.queues[*number];
            if let Some(live) = queue.live.as_mut() {
                live.settle(py, &queue.object)?;
            }
        }
        Ok(())
    }

    /// Settle and give every buffer back, before a call that may map, unmap or roll files.
    pub fn release(&mut self, burst: &mut Burst<'_>) -> PyResult<()> {
        let settled = self.settle(burst);
        burst.log = None;
        for number in burst.live_queues.drain(..) {
            self.queues[number].live = None;
        }
        settled
    }

    /// Write the index entries collected so far.
    pub fn write_index(&mut self, burst: &mut Burst<'_>) -> PyResult<()> {
        self.index.write(self.index_files.as_ref().map(|files| files.bind(burst.py)), burst.now_ms)
    }

    /// What a burst leaves to its end. Returns what was stored, by topic.
    pub fn end<'py>(&mut self, burst: &mut Burst<'py>) -> PyResult<Bound<'py, PyList>> {
        let py = burst.py;
        let released = self.release(burst);
        let puts = PyList::empty(py);
        if burst.touched.is_empty() {
            released?;
            return Ok(puts);
        }
        let indexed = self.write_index(burst);
        for number in burst.touched.drain(..) {
            let topic = &mut self.topics[number];
            if topic.count > 0 {
                puts.append((&topic.py_name, topic.count, topic.byte_count, topic.request_count))?;
            }
            (topic.count, topic.byte_count, topic.request_count) = (0, 0, 0);
        }
        let store = self.store.bind(py);
        store.setattr(intern!(py, "last_store_timestamp"), burst.now_ms)?;
        store.setattr(intern!(py, "last_record_offset"), burst.last_offset)?;
        released.and(indexed).map(|()| puts)
    }
}

/// A JSON integer.
pub fn int(value: Value<'_>) -> Outcome<i64> {
    match value {
        Value::Integer(value) => Ok(value),
        _ => Err(Stop::Slow),
    }
}

fn decimal_digits(value: i64) -> usize {
    value.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// The names of a send's fields in the order in which LaneCore uses them.
pub type SendNames = [Name; 8];
