//! Pulls that find messages in memory (aerobee/broker/lane/pull.py is the definition).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::ops::Range;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::binary_header;
use crate::field::{Fields, Name, Value};
use crate::lane::{Burst, Form, Outcome, State, Stop};
use crate::window::Window;

mod filter;

use filter::Filter;
pub use filter::RecordFilter;

const COMMIT_OFFSET: i64 = 1;
const SUSPEND: i64 = 2;
const SUBSCRIPTION: i64 = 4;
const SQL_MARK: u8 = 0; // in front of a request's SQL92 expression, as in lane/pull.py
const COUNT_MAX: i64 = 1024;
const GRANTS_MAX: usize = 4096;
const FRAME_BYTES_MAX: usize = 16 << 20;
const RESULT_BYTES_MAX: i64 = 128 << 20;
const ENTRY_BYTES: usize = 20;
const FILLER_SIZE: i32 = i32::MAX;
const RECORD_BYTES_MIN: i32 = 36;
const HOLD_MS_MAX: i64 = 300_000;
const NEAR_ENTRIES: i64 = 1024; // so near to the end, a queue's entries are in memory

/// One way to pull that is allowed (PullGrant of lane/pull.py).
struct Grant {
    object: Py<PyAny>,
    topic: Py<PyAny>,
    queue_count: i64,
    tag_codes: Option<HashSet<i64>>,
    filter: Option<Filter>,
    spans: RefCell<HashMap<i64, Span>>, // by queue id: what is known to be in memory
    broker_id: String,
    slow_broker_id: String,
    topic_sys_flag: String,
    group_sys_flag: String,
}

/// Offsets from which a queue may be read without waiting for the disk, so many times.
struct Span {
    start: i64,
    stop: i64,
    reads: i64,
}

/// Who may pull, by everything that the answer depends on.
pub struct Grants {
    find: Py<PyAny>,
    parks: bool, // a pull that finds nothing may wait as long as it says
    grants: HashMap<Vec<u8>, Grant>,
    limits: Option<Limits>,
    key: Vec<u8>,
    head_bytes: usize, // of the last reply, before its messages
}

/// The store's limits of a read, read again when its config is another object.
struct Limits {
    config: Py<PyAny>,
    memory_bytes: i64,
    hot_read_bytes: i64,
    entry_budget: i64,
    hot_count: i64,
    hot_bytes: i64,
    cold_count: i64,
    cold_bytes: i64,
}

/// One segment of the log that this read looked into.
pub struct Segment {
    pub base: i64,
    pub end: i64,
    pub window: Window,
}

/// What a pull asks for.
struct Asked {
    queue_id: i64,
    offset: i64,
    count_max: i64,
    commit: Option<i64>,
}

/// What became of a pull.
enum Read {
    Found(Found),
    Waits,
    NotOrdinary,
}

/// What a read found; the records are in a buffer beside it.
struct Found {
    next_offset: i64,
    count: i64,
    is_slow: bool, // its last record is beyond the memory share
    min_offset: i64,
    max_offset: i64,
}

/// A pull that waits for the next message of its queue.
pub struct Waiting {
    grant: Py<PyAny>,
    queue_id: i64,
    offset: i64,
    commit: Option<i64>,
    hold_ms: i64,
}

impl Grants {
    pub fn new(find: Py<PyAny>, parks: bool) -> Self {
        Self { find, parks, grants: HashMap::new(), limits: None, key: Vec::new(), head_bytes: 0 }
    }

    pub fn forget(&mut self) {
        self.grants.clear();
    }
}

impl Span {
    fn covers(&self, offset: i64) -> bool {
        self.reads > 0 && (self.start..self.stop).contains(&offset)
    }
}

impl Limits {
    fn load(config: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = config.py();
        let read = |name: &Bound<'_, PyString>| config.getattr(name)?.extract::<i64>();
        Ok(Self {
            memory_bytes: config.call_method0(intern!(py, "memory_share_bytes"))?.extract()?,
            hot_read_bytes: read(intern!(py, "hot_read_bytes"))?,
            entry_budget: read(intern!(py, "max_filter_message_size"))? / ENTRY_BYTES as i64,
            hot_count: read(intern!(py, "max_transfer_count_on_message_in_memory"))?,
            hot_bytes: read(intern!(py, "max_transfer_bytes_on_message_in_memory"))?.min(RESULT_BYTES_MAX),
            cold_count: read(intern!(py, "max_transfer_count_on_message_in_disk"))?,
            cold_bytes: read(intern!(py, "max_transfer_bytes_on_message_in_disk"))?.min(RESULT_BYTES_MAX),
            config: config.clone().unbind(),
        })
    }
}

impl State {
    /// Serve a pull: its reply goes to the burst's replies, what is to be noted to its gets.
    pub fn pull(
        &mut self,
        burst: &mut Burst<'_>,
        form: Form,
        code: i64,
        opaque: i64,
        fields: &Fields<'_>,
    ) -> Outcome<()> {
        let py = burst.py;
        let number = |name: Name| fields.get(name).number().ok_or(Stop::Slow);
        let flags = number(Name::SysFlag)?;
        let expression_type = fields.get(Name::ExpressionType);
        let is_sql = if expression_type.is_missing() {
            false
        } else {
            match &*expression_type.text().ok_or(Stop::Slow)? {
                b"SQL92" => true,
                b"TAG" | b"" => false,
                _ => return Err(Stop::Slow),
            }
        };
        let mut key = std::mem::take(&mut self.grants.key);
        let granted = self.grant(py, &mut key, code, flags, is_sql, fields);
        let outcome = granted.and_then(|()| {
            let asked = Asked {
                queue_id: number(Name::QueueId)?,
                offset: number(Name::QueueOffset)?,
                count_max: number(Name::MaxMsgNums)?.clamp(1, COUNT_MAX),
                commit: if flags & COMMIT_OFFSET != 0 { Some(number(Name::CommitOffset)?) } else { None },
            };
            // What this burst has stored is to be found, too; and reading may close a file that it writes to.
            self.release(burst).map_err(Stop::Fault)?;
            let may_wait = self.grants.parks && flags & SUSPEND != 0;
            let start = burst.replies.len();
            let head = self.grants.head_bytes;
            burst.replies.resize(start + head, 0);
            let read = self.read(py, &key, &asked, may_wait, &mut burst.replies);
            let outcome = self.check(py, read).and_then(|read| match read {
                Read::Found(found) => self.answer(burst, &key, form, opaque, &asked, &found, start..start + head),
                Read::Waits => self.wait(burst, &key, &asked, start, fields.get(Name::SuspendTimeoutMillis)),
                Read::NotOrdinary => Err(Stop::Slow),
            });
            if outcome.is_err() {
                burst.replies.truncate(start);
            }
            outcome
        });
        self.grants.key = key;
        outcome
    }

    /// Put into `key` what the answer depends on, and ask unless it is known already.
    fn grant(
        &mut self,
        py: Python<'_>,
        key: &mut Vec<u8>,
        code: i64,
        flags: i64,
        is_sql: bool,
        fields: &Fields<'_>,
    ) -> Outcome<()> {
        let posted = flags & SUBSCRIPTION != 0;
        let (subscription, sub_version) = if posted {
            let value = fields.get(Name::Subscription);
            let text = if value.is_missing() { Cow::Borrowed(&b""[..]) } else { value.text().ok_or(Stop::Slow)? };
            if text.first() == Some(&SQL_MARK) {
                return Err(Stop::Slow);
            }
            (Some(if is_sql { Cow::Owned([&[SQL_MARK], &*text].concat()) } else { text }), 0)
        } else {
            let value = fields.get(Name::SubVersion);
            (None, if value.is_missing() { 0 } else { value.number().ok_or(Stop::Slow)? })
        };
        let group = fields.get(Name::ConsumerGroup).text().ok_or(Stop::Slow)?;
        let topic = fields.get(Name::Topic).text().ok_or(Stop::Slow)?;
        key.clear();
        for part in [&group, &topic, subscription.as_ref().unwrap_or(&Cow::Borrowed(&b""[..]))] {
            key.extend_from_slice(&(part.len() as u32).to_be_bytes());
            key.extend_from_slice(part);
        }
        key.extend_from_slice(&code.to_be_bytes());
        key.extend_from_slice(&sub_version.to_be_bytes());
        key.push(u8::from(posted));
        if self.grants.grants.contains_key(key) {
            return Ok(());
        }
        let text = |bytes: &Cow<'_, [u8]>| String::from_utf8(bytes.to_vec()).map_err(|_| Stop::Slow);
        let (group, topic) = (text(&group)?, text(&topic)?);
        let subscription = subscription.as_ref().map(text).transpose()?;
        let question = (code, group, topic, subscription, sub_version);
        let object = self.check(py, self.grants.find.bind(py).call1((question,)))?;
        if object.is_none() {
            return Err(Stop::Slow);
        }
        let Some(grant) = self.check(py, Grant::load(object))? else { return Err(Stop::Slow) };
        if self.grants.grants.len() >= GRANTS_MAX {
            self.grants.grants.clear();
        }
        self.grants.grants.insert(key.clone(), grant);
        Ok(())
    }

    /// Append messages to `out`.
    fn read(
        &mut self,
        py: Python<'_>,
        key: &[u8],
        asked: &Asked,
        may_wait: bool,
        out: &mut Vec<u8>,
    ) -> PyResult<Read> {
        let store = self.store.bind(py);
        let config = store.getattr(intern!(py, "config"))?;
        if self.grants.limits.as_ref().is_none_or(|limits| !limits.config.is(&config)) {
            self.grants.limits = Some(Limits::load(&config)?);
        }
        let (Some(grant), Some(limits)) = (self.grants.grants.get(key), self.grants.limits.as_ref()) else {
            return Ok(Read::NotOrdinary);
        };
        let Asked { queue_id, offset, count_max, .. } = *asked;
        if !(0..grant.queue_count).contains(&queue_id) {
            return Ok(Read::NotOrdinary);
        }
        let queues = store.getattr(intern!(py, "queues"))?.cast_into::<PyDict>()?;
        let Some(queue) = queues.get_item((&grant.topic, queue_id))? else { return Ok(Read::NotOrdinary) };
        if !queue.get_type().is(self.queue_type.bind(py)) {
            return Ok(Read::NotOrdinary);
        }
        let max_offset: i64 = queue.getattr(intern!(py, "readable_max"))?.extract()?;
        if may_wait && offset == max_offset && max_offset > 0 {
            return Ok(Read::Waits);
        }
        let min_offset: i64 = queue.getattr(intern!(py, "min_offset"))?.extract()?;
        if offset < min_offset || offset >= max_offset {
            return Ok(Read::NotOrdinary);
        }
        let is_near = max_offset - offset <= NEAR_ENTRIES;
        if !is_near && grant.is_cold(store, &queue, queue_id, offset)? {
            return Ok(Read::NotOrdinary);
        }
        let log = self.log_object.bind(py);
        let log_end: i64 = log.getattr(intern!(py, "end"))?.extract()?;
        let reader = Reader { grant, limits, log, log_end, queue: &queue, max_offset, count_max };
        let Some(entries) = reader.entries(offset, reader.step(offset))? else { return Ok(Read::NotOrdinary) };
        if is_near && !is_young(&entries, log_end, limits) && grant.is_cold(store, &queue, queue_id, offset)? {
            return Ok(Read::NotOrdinary);
        }
        let read = reader.collect(offset, entries, out)?.filter(|(_, count, _)| *count > 0);
        Ok(read.map_or(Read::NotOrdinary, |(next_offset, count, last_offset)| {
            let is_slow = log_end - last_offset > limits.memory_bytes;
            Read::Found(Found { next_offset, count, is_slow, min_offset, max_offset })
        }))
    }

    /// Complete the reply to a pull, whose messages stand at the end of the burst's replies behind room for its head, and
    /// note it.
    #[allow(clippy::too_many_arguments)]
    fn answer(
        &mut self,
        burst: &mut Burst<'_>,
        key: &[u8],
        form: Form,
        opaque: i64,
        asked: &Asked,
        found: &Found,
        room: Range<usize>,
    ) -> Outcome<()> {
        let py = burst.py;
        let grant = self.grants.grants.get(key).ok_or(Stop::Slow)?;
        let body_bytes = burst.replies.len() - room.end;
        let mut head = std::mem::take(&mut self.scratch.head);
        head.clear();
        grant.write_head(&mut head, form, opaque, found, body_bytes);
        let is_too_long = head.len() + body_bytes > FRAME_BYTES_MAX;
        let start = room.start;
        if head.len() == room.len() {
            burst.replies[room].copy_from_slice(&head);
        } else {
            // The next one will fit: heads of one consumer differ in length when a number gets another digit.
            self.grants.head_bytes = head.len();
            burst.replies.splice(room, head.iter().copied());
        }
        self.scratch.head = head;
        if is_too_long {
            return Err(Stop::Slow);
        }
        burst.pulled_bytes += burst.replies.len() - start;
        let waits = py.None();
        let got = (&grant.object, asked.queue_id, found.next_offset, asked.commit, found.count, body_bytes, waits);
        burst.gets.get_or_insert_with(|| PyList::empty(py)).append(got).map_err(Stop::Fault)
    }

    /// Leave a pull without a reply: it is to wait for the next message of its queue.
    fn wait(
        &self,
        burst: &mut Burst<'_>,
        key: &[u8],
        asked: &Asked,
        start: usize,
        timeout_ms: Value<'_>,
    ) -> Outcome<()> {
        let hold_ms = if timeout_ms.is_missing() { 0 } else { timeout_ms.number().ok_or(Stop::Slow)? };
        let grant = self.grants.grants.get(key).ok_or(Stop::Slow)?;
        burst.replies.truncate(start);
        burst.waiting = Some(Waiting {
            grant: grant.object.clone_ref(burst.py),
            queue_id: asked.queue_id,
            offset: asked.offset,
            commit: asked.commit,
            hold_ms: hold_ms.clamp(0, HOLD_MS_MAX),
        });
        Ok(())
    }
}

impl Waiting {
    /// Add it to what the burst has pulled.
    pub fn note(self, burst: &mut Burst<'_>, frame: &[u8]) -> PyResult<()> {
        let py = burst.py;
        let waits = (PyBytes::new(py, frame), self.hold_ms);
        let got = (self.grant, self.queue_id, self.offset, self.commit, 0, 0, waits);
        burst.gets.get_or_insert_with(|| PyList::empty(py)).append(got)
    }
}

impl Grant {
    /// Whether reading there would wait for the disk: Warmer.is_cold, asked once for the reads that it covers.
    fn is_cold(
        &self,
        store: &Bound<'_, PyAny>,
        queue: &Bound<'_, PyAny>,
        queue_id: i64,
        offset: i64,
    ) -> PyResult<bool> {
        let py = store.py();
        let mut spans = self.spans.borrow_mut();
        if let Some(span) = spans.get_mut(&queue_id).filter(|span| span.covers(offset)) {
            span.reads -= 1;
            return Ok(false);
        }
        spans.remove(&queue_id);
        let warmer = store.getattr(intern!(py, "warmer"))?;
        let span = warmer.call_method1(intern!(py, "take_warm_span"), (queue, offset))?;
        let Some((start, stop, reads)) = span.extract::<Option<(i64, i64, i64)>>()? else { return Ok(true) };
        if reads > 0 {
            spans.insert(queue_id, Span { start, stop, reads });
        }
        Ok(false)
    }

    /// The head of a reply: everything before its messages.
    fn write_head(&self, head: &mut Vec<u8>, form: Form, opaque: i64, found: &Found, body_bytes: usize) {
        let suggested = if found.is_slow { &self.slow_broker_id } else { &self.broker_id };
        if form == Form::Json {
            head.extend_from_slice(&[0; 8]);
            let _ = write!(
                head,
                "{{\"code\":0,\"extFields\":{{\"suggestWhichBrokerId\":\"{suggested}\",\"nextBeginOffset\":\"{}\",\
                 \"minOffset\":\"{}\",\"maxOffset\":\"{}\",\"topicSysFlag\":\"{}\",\"groupSysFlag\":\"{}\"}},\
                 \"flag\":1,\"language\":\"PYTHON\",\"opaque\":{opaque},\"remark\":\"FOUND\",\
                 \"serializeTypeCurrentRPC\":\"JSON\",\"version\":{}}}",
                found.next_offset,
                found.min_offset,
                found.max_offset,
                self.topic_sys_flag,
                self.group_sys_flag,
                binary_header::REPLY_VERSION,
            );
            let header_bytes = head.len() - 8;
            let length = 4 + header_bytes + body_bytes;
            head[..4].copy_from_slice(&(length as u32).to_be_bytes());
            head[4..8].copy_from_slice(&(header_bytes as u32).to_be_bytes());
        } else {
            let numbers = [found.next_offset, found.min_offset, found.max_offset].map(|number| number.to_string());
            let entries: [(&[u8], &[u8]); 6] = [
                (b"suggestWhichBrokerId", suggested.as_bytes()),
                (b"nextBeginOffset", numbers[0].as_bytes()),
                (b"minOffset", numbers[1].as_bytes()),
                (b"maxOffset", numbers[2].as_bytes()),
                (b"topicSysFlag", self.topic_sys_flag.as_bytes()),
                (b"groupSysFlag", self.group_sys_flag.as_bytes()),
            ];
            binary_header::write_reply(head, opaque, b"FOUND", &entries, body_bytes);
        }
    }

    /// None for a grant whose filter has no program.
    fn load(object: Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        let number = |name: &Bound<'_, PyString>| object.getattr(name)?.extract::<i64>();
        let program = object.getattr(intern!(py, "program"))?;
        let filter = if program.is_none() { None } else { Filter::load(&program)? };
        if filter.is_none() && !object.getattr(intern!(py, "accept"))?.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            filter,
            spans: RefCell::default(),
            topic: object.getattr(intern!(py, "topic"))?.unbind(),
            queue_count: number(intern!(py, "queue_count"))?,
            tag_codes: object.getattr(intern!(py, "tag_codes"))?.extract::<Option<HashSet<i64>>>()?,
            broker_id: number(intern!(py, "broker_id"))?.to_string(),
            slow_broker_id: number(intern!(py, "slow_broker_id"))?.to_string(),
            topic_sys_flag: number(intern!(py, "topic_sys_flag"))?.to_string(),
            group_sys_flag: number(intern!(py, "group_sys_flag"))?.to_string(),
            object: object.unbind(),
        }))
    }
}

/// Whether the first record asked for is so young that nobody need ask whether it is in memory.
fn is_young(entry: &[u8], log_end: i64, limits: &Limits) -> bool {
    entry.first_chunk::<8>().is_some_and(|offset| log_end - i64::from_be_bytes(*offset) <= limits.hot_read_bytes)
}

/// One read of a queue, as MessageReader._collect does it.
struct Reader<'r, 'py> {
    grant: &'r Grant,
    limits: &'r Limits,
    log: &'r Bound<'py, PyAny>,
    log_end: i64,
    queue: &'r Bound<'py, PyAny>,
    max_offset: i64,
    count_max: i64,
}

impl Reader<'_, '_> {
    /// How many entries are looked at together: a read that is full after 32 must not copy 800 of them.
    fn step(&self, at: i64) -> i64 {
        let count = if self.grant.tag_codes.is_none() { self.count_max } else { self.budget() };
        count.min(self.max_offset - at)
    }

    fn budget(&self) -> i64 {
        self.limits.entry_budget.max(self.count_max)
    }

    /// Up to `count` entries from `at` on, which are there, to the end of their file; None when there are none.
    fn entries(&self, at: i64, count: i64) -> PyResult<Option<Vec<u8>>> {
        let py = self.queue.py();
        let base: i64 = self.queue.getattr(intern!(py, "tail_base"))?.extract()?;
        if at >= base {
            // Most reads are of the file that is written to, which is open.
            let window = Window::new(&self.queue.getattr(intern!(py, "tail_buffer"))?)?;
            let count = count.min(window.len() as i64 / ENTRY_BYTES as i64 - (at - base));
            let mut entries = Vec::new();
            let bytes = usize::try_from(count).unwrap_or(0) * ENTRY_BYTES;
            if bytes > 0 && window.append_to((at - base) * ENTRY_BYTES as i64, bytes, &mut entries) {
                return Ok(Some(entries));
            }
        }
        let entries = self.queue.call_method1(intern!(py, "read_entries"), (at, count))?;
        let entries = entries.cast::<PyBytes>()?.as_bytes();
        Ok((!entries.is_empty()).then(|| entries.to_vec()))
    }

    /// Append records to `out`: (next offset, messages, offset of the last record). None for a hole in the queue or
    /// an entry without its record. `entries` are the first ones, from `offset` on.
    fn collect(&self, offset: i64, mut entries: Vec<u8>, out: &mut Vec<u8>) -> PyResult<Option<(i64, i64, i64)>> {
        let limits = self.limits;
        let stop = self.max_offset.min(offset.saturating_add(self.budget()));
        let hot_from = self.log_end.saturating_sub(limits.memory_bytes);
        let (hot, cold) = (self.count_max.min(limits.hot_count), self.count_max.min(limits.cold_count));
        let filter = self.grant.filter.as_ref();
        let mut segment: Option<Segment> = None;
        let body_at = out.len();
        let (mut at, mut count, mut last) = (offset, 0, -1);
        loop {
            for entry in entries.chunks_exact(ENTRY_BYTES) {
                let (physical_offset, size, code) = cut_entry(entry);
                let is_filler = size == FILLER_SIZE && physical_offset == 0;
                if is_filler || self.grant.tag_codes.as_ref().is_some_and(|codes| !codes.contains(&code)) {
                    at += 1;
                    continue;
                }
                if count > 0 {
                    let is_hot = physical_offset >= hot_from;
                    let (most, bytes) = if is_hot { (hot, limits.hot_bytes) } else { (cold, limits.cold_bytes) };
                    if count >= most || (out.len() - body_at) as i64 + i64::from(size) > bytes {
                        return Ok(Some((at, count, last)));
                    }
                }
                if segment.as_ref().is_none_or(|one| !(one.base..one.end).contains(&physical_offset)) {
                    segment = Segment::find(self.log, physical_offset)?;
                }
                let Some(segment) = &segment else {
                    if !(0..self.log_end).contains(&physical_offset) {
                        return Ok(None);
                    }
                    at += 1;
                    continue;
                };
                let start = out.len();
                if !segment.append_record(physical_offset, size, out) {
                    return Ok(None);
                }
                at += 1;
                if let Some(filter) = filter {
                    match filter.accepts(&out[start..]) {
                        Ok(true) => {}
                        Ok(false) => {
                            out.truncate(start);
                            continue;
                        }
                        Err(filter::Unknown) => return Ok(None),
                    }
                }
                count += 1;
                last = physical_offset;
            }
            if at >= stop {
                return Ok(Some((at, count, last)));
            }
            match self.entries(at, self.step(at).min(stop - at))? {
                Some(more) => entries = more,
                None => return Ok(Some((at, count, last))),
            }
        }
    }
}

impl Segment {
    pub fn find(log: &Bound<'_, PyAny>, physical_offset: i64) -> PyResult<Option<Self>> {
        let py = log.py();
        let base: i64 = log.getattr(intern!(py, "base"))?.extract()?;
        if physical_offset >= base {
            let window = Window::new(&log.getattr(intern!(py, "buffer"))?)?;
            return Ok(Some(Self { base, end: base + window.len() as i64, window }).filter(|one| physical_offset < one.end));
        }
        let segment = log.call_method1(intern!(py, "segment_at"), (physical_offset,))?;
        if segment.is_none() {
            return Ok(None);
        }
        let base: i64 = segment.getattr(intern!(py, "base"))?.extract()?;
        let size: i64 = segment.getattr(intern!(py, "size"))?.extract()?;
        let buffer = segment.getattr(intern!(py, "file"))?.getattr(intern!(py, "buffer"))?;
        Ok(Some(Self { base, end: base + size, window: Window::new(&buffer)? }))
    }

    /// Append the record to `body`, if it says that it is the one: its own size and offset are right.
    fn append_record(&self, physical_offset: i64, size: i32, body: &mut Vec<u8>) -> bool {
        if size < RECORD_BYTES_MIN {
            return false;
        }
        let start = body.len();
        if !self.window.append_to(physical_offset - self.base, size as usize, body) {
            return false;
        }
        let record = &body[start..];
        let is_it = record[..4] == size.to_be_bytes() && record[28..36] == physical_offset.to_be_bytes();
        if !is_it {
            body.truncate(start);
        }
        is_it
    }
}

/// physical offset, size, tags code
fn cut_entry(entry: &[u8]) -> (i64, i32, i64) {
    let (mut offset, mut size, mut code) = ([0; 8], [0; 4], [0; 8]);
    offset.copy_from_slice(&entry[..8]);
    size.copy_from_slice(&entry[8..12]);
    code.copy_from_slice(&entry[12..20]);
    (i64::from_be_bytes(offset), i32::from_be_bytes(size), i64::from_be_bytes(code))
}
