//! RawAppender: a master's log bytes, with the queue and index entries that belong to them. RawAppender.append of
//! aerobee/store/append/raw_appender.py is the reference implementation; the first record that is not ordinary, and all
//! following ones, are left to it.
//!
//! The order is the reference implementation's: records are read and judged; space in the index, the queues and the log; the bytes; the
//! log's end; queue entries; index entries; listeners are notified. Nothing can fail for a master's reasons after the first byte.

use std::collections::HashMap;
use std::sync::Mutex;

use pyo3::exceptions::PyBufferError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::constants::{
    BLANK_BYTES, BORN_HOST_V6, BORN_TIMESTAMP_AT, INNER_BATCH, MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_AT, QUEUE_ENTRY_BYTES,
    QUEUE_ID_AT, QUEUE_OFFSET_AT, QUEUE_OFFSET_MAX, RECORD_BYTES_MIN, SCHEDULE_TOPIC, STORE_HOST_V6, SYS_FLAG_AT,
    TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK,
};
use crate::index::Index;
use crate::outcome::Errors;
use crate::record::{body_crc};
use crate::text::{java_hash_from, positive};
use crate::topic::LiveQueue;
use crate::window::Window;

const THROUGH_FILE_BYTES: usize = 64 << 10; // as in aerobee/store/log/commit_log.py
const LEVEL_DIGITS_MAX: usize = 9; // more of them are for the reference implementation

/// Copies one log.
#[pyclass(frozen, module = "aerobee_native")]
pub struct RawAppender {
    state: Mutex<State>,
}

struct State {
    log: Py<PyAny>,
    numbers: Py<PyAny>, // the store's LogAppender
    index_object: Py<PyAny>,
    index_files: Option<Py<PyList>>, // None: the index is off
    index: Index,
    queue_type: Py<PyAny>,
    errors: Errors,
    delays_ms: Vec<i64>, // of delay levels 1, 2, ...
    bytes: Vec<u8>,
    plan: Plan,
}

/// Records that were read, and nothing of them written.
#[derive(Default)]
struct Plan {
    records: Vec<Planned>,
    hashes: Vec<(i32, i64)>,
    times: Vec<i64>, // of each index entry: when its record was stored
    queues: Vec<PlannedQueue>,
    topics: HashMap<Vec<u8>, usize>,
    hash_starts: Vec<u32>,
    by_topic: HashMap<(usize, i32), usize>,
}

struct Planned {
    physical_offset: i64,
    size: usize,
    store_timestamp: i64,
    queue: Option<usize>, // None: consumers do not find it
    tags_code: i64,
    hash_count: usize, // index entries of all records up to this one
}

struct PlannedQueue {
    object: Py<PyAny>,
    end: i64, // queue offset behind its last planned record
    count: usize,
}

/// A notice for consumers: messages of a queue up to this offset, which have this code.
struct Note {
    queue: usize,
    end: i64,
    tags_code: i64,
}

#[pymethods]
impl RawAppender {
    #[new]
    fn new(store: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = store.py();
        let (index, numbers) = (store.getattr("index")?, store.getattr("raw_appender")?);
        let files = index.getattr("files")?.cast_into::<PyList>()?.unbind();
        Ok(Self {
            state: Mutex::new(State {
                log: store.getattr("log")?.unbind(),
                delays_ms: numbers.getattr("delay_levels_ms")?.extract()?,
                numbers: numbers.unbind(),
                index_files: index.getattr("is_enabled")?.is_truthy()?.then_some(files),
                index_object: index.unbind(),
                index: Index::default(),
                queue_type: py.import("aerobee.store.queue.consume_queue")?.getattr("ConsumeQueue")?.unbind(),
                errors: Errors::new(py)?,
                bytes: Vec::new(),
                plan: Plan::default(),
            }),
        })
    }

    /// Append the whole, ordinary records at the start of `data[begin:]`, which belong to `physical_offset`, the log's end.
    ///
    /// Returns how many bytes that were; 0: the first record is for the reference implementation, or not whole. Raises StoreFull,
    /// StoreNotWritable, RecordInvalid as the reference implementation does; nothing has changed then.
    fn append(&self, py: Python<'_>, physical_offset: i64, data: &Bound<'_, PyAny>, begin: usize) -> PyResult<usize> {
        // Taken already: a callback came back here.
        let Ok(mut state) = self.state.try_lock() else { return Ok(0) };
        let mut bytes = std::mem::take(&mut state.bytes);
        bytes.clear();
        let window = Window::new(data)?;
        let size = window.len().saturating_sub(begin);
        // A long record that is not whole yet is not copied with each of its pieces.
        if window.read(begin as i64).is_none_or(|word: [u8; 4]| u32::from_be_bytes(word) as usize > size) {
            drop(window);
            state.bytes = bytes;
            return Ok(0);
        }
        let copied = window.append_to(begin as i64, size, &mut bytes);
        drop(window);
        let appended = if copied { state.append(py, physical_offset, &bytes, (data, begin)) } else { Ok(0) };
        state.plan.clear();
        state.bytes = bytes;
        appended
    }
}

impl State {
    /// `bytes` are a copy of those of the object `lent`, from its second part on.
    fn append(&mut self, py: Python<'_>, start: i64, bytes: &[u8], lent: (&Bound<'_, PyAny>, usize)) -> PyResult<usize> {
        self.numbers.bind(py).call_method1(intern!(py, "check"), (start,))?;
        let Some(bound) = self.file_end(py, start)? else { return Ok(0) };
        self.read(py, start, bytes, bound)?;
        self.make_room(py)?;
        let Some(last) = self.plan.records.last() else { return Ok(0) };
        let (end, now_ms, last_offset) = (last.physical_offset + last.size as i64, last.store_timestamp, last.physical_offset);
        let size = (end - start) as usize;
        // Before bytes are in the file: it must have none behind the log's end when this gives up.
        let Some(mut live) = self.load_queues(py)? else { return Ok(0) };
        let numbers = self.numbers.bind(py);
        let written = if size >= THROUGH_FILE_BYTES {
            numbers.call_method1(intern!(py, "write_through"), (start, lent.0, lent.1, size))?;
            None
        } else {
            numbers.call_method1(intern!(py, "reserve"), (start, size))?;
            Some(&bytes[..size])
        };
        // Nothing from here on can fail.
        let notes = match self.write(py, start, written, end, &mut live) {
            Ok(notes) => notes,
            Err(error) => {
                let cause = error.into_value(py);
                let broken = self.numbers.bind(py).call_method1(intern!(py, "broken"), (start, cause))?;
                return Err(PyErr::from_value(broken));
            }
        };
        drop(live);
        let told = PyList::empty(py);
        for note in notes {
            told.append((&self.plan.queues[note.queue].object, note.end, note.tags_code))?;
        }
        self.numbers.bind(py).call_method1(intern!(py, "show"), (now_ms, last_offset, told))?;
        Ok(size)
    }

    /// End of the log's current file, without space for a blank; None when another file is to be begun.
    fn file_end(&self, py: Python<'_>, start: i64) -> PyResult<Option<i64>> {
        let log = self.log.bind(py);
        if log.getattr(intern!(py, "segments"))?.is_empty()? {
            return Ok(None);
        }
        let base: i64 = log.getattr(intern!(py, "base"))?.extract()?;
        let bound = base + log.getattr(intern!(py, "segment_size"))?.extract::<i64>()? - BLANK_BYTES;
        Ok((start < bound).then_some(bound))
    }

    /// Plan the ordinary records from the start on.
    fn read(&mut self, py: Python<'_>, start: i64, bytes: &[u8], bound: i64) -> PyResult<()> {
        let (mut at, mut place) = (0, start);
        while let Some(record) = Raw::cut(&bytes[at..], place) {
            if place + record.size as i64 > bound || !self.plan_one(py, &record, place)? {
                break;
            }
            at += record.size;
            place += record.size as i64;
        }
        Ok(())
    }

    /// Plan a record; false when it is for the reference implementation.
    fn plan_one(&mut self, py: Python<'_>, record: &Raw<'_>, place: i64) -> PyResult<bool> {
        let Some(pairs) = Pairs::read(record.properties) else { return Ok(false) };
        let kind = i64::from(record.sys_flag) & TRANSACTION_MASK;
        let topic = match self.plan.topics.get(record.topic) {
            Some(number) => *number,
            None => {
                if std::str::from_utf8(record.topic).is_err() {
                    return Ok(false);
                }
                self.plan.hash_starts.push(java_hash_from(java_hash_from(0, record.topic), b"#"));
                self.plan.topics.insert(record.topic.to_vec(), self.plan.hash_starts.len() - 1);
                self.plan.hash_starts.len() - 1
            }
        };
        let mut planned = Planned {
            physical_offset: place,
            size: record.size,
            store_timestamp: record.store_timestamp,
            queue: None,
            tags_code: 0,
            hash_count: 0,
        };
        if kind == 0 || kind == TRANSACTION_COMMIT {
            // Before the queue look-up, which creates a missing queue.
            if !(0..=QUEUE_OFFSET_MAX).contains(&record.queue_offset) {
                return Ok(false);
            }
            let Some(tags_code) = self.tags_code(record, &pairs) else { return Ok(false) };
            let Some(number) = self.queue(py, topic, record)? else { return Ok(false) };
            let queue = &mut self.plan.queues[number];
            if record.queue_offset != queue.end {
                return Ok(false);
            }
            queue.end += 1;
            queue.count += 1;
            (planned.queue, planned.tags_code) = (Some(number), tags_code);
        }
        if kind != TRANSACTION_ROLLBACK && self.index_files.is_some() {
            let hash_start = self.plan.hash_starts[topic];
            let before = self.plan.hashes.len();
            pairs.each_key(|prefix, key| {
                let hash = positive(java_hash_from(java_hash_from(hash_start, prefix), key));
                self.plan.hashes.push((hash, place));
            });
            self.plan.times.resize(self.plan.times.len() + self.plan.hashes.len() - before, record.store_timestamp);
        }
        planned.hash_count = self.plan.hashes.len();
        self.plan.records.push(planned);
        Ok(true)
    }

    /// The queue entry's filter value: tag hash or due time; None when that is for the reference implementation.
    fn tags_code(&self, record: &Raw<'_>, pairs: &Pairs<'_>) -> Option<i64> {
        if record.topic == SCHEDULE_TOPIC && !self.delays_ms.is_empty() {
            if let Some(text) = pairs.delay {
                if text.len() > LEVEL_DIGITS_MAX || !text.is_ascii() {
                    return None;
                }
                let digits = text.iter().all(u8::is_ascii_digit);
                let level = if digits { text.iter().fold(0, |sum, byte| sum * 10 + usize::from(byte - b'0')) } else { 0 };
                if level > 0 {
                    return record.store_timestamp.checked_add(self.delays_ms[level.min(self.delays_ms.len()) - 1]);
                }
            }
        }
        Some(pairs.tags.map_or(0, |tag| i64::from(java_hash_from(0, tag) as i32)))
    }

    /// The planned queue of a record; None when the reference implementation has to find it.
    fn queue(&mut self, py: Python<'_>, topic: usize, record: &Raw<'_>) -> PyResult<Option<usize>> {
        if let Some(number) = self.plan.by_topic.get(&(topic, record.queue_id)) {
            return Ok(Some(*number));
        }
        let Ok(name) = std::str::from_utf8(record.topic) else { return Ok(None) };
        let found = self.numbers.bind(py).call_method1(intern!(py, "queue"), (name, record.queue_id));
        let Ok(object) = self.errors.check(py, found) else { return Ok(None) };
        if !object.get_type().is(self.queue_type.bind(py)) {
            return Ok(None);
        }
        let end = object.getattr(intern!(py, "max_offset"))?.extract()?;
        self.plan.queues.push(PlannedQueue { object: object.unbind(), end, count: 0 });
        self.plan.by_topic.insert((topic, record.queue_id), self.plan.queues.len() - 1);
        Ok(Some(self.plan.queues.len() - 1))
    }

    /// Reserve space for planned records; those without space are dropped from the plan.
    fn make_room(&mut self, py: Python<'_>) -> PyResult<()> {
        let files = self.index_files.as_ref().map(|files| files.bind(py));
        self.index.load_room(files, false)?;
        let (Some(last), count) = (self.plan.records.last(), self.plan.hashes.len()) else { return Ok(()) };
        if self.index.room < count as i64 {
            let index = self.index_object.bind(py);
            if !index.call_method1(intern!(py, "has_room"), (count,))?.is_truthy()? {
                index.call_method1(intern!(py, "make_room"), (count, last.store_timestamp))?;
            }
            self.index.load_room(files, true)?;
            let room = self.index.room;
            let fitting = self.plan.records.iter().take_while(|record| record.hash_count as i64 <= room).count();
            self.plan.truncate(fitting);
        }
        let mut fitting = self.plan.records.len();
        for number in 0..self.plan.queues.len() {
            let queue = &self.plan.queues[number];
            let object = queue.object.bind(py);
            let begin = queue.end - queue.count as i64;
            let room = || object.getattr(intern!(py, "room"))?.extract::<i64>();
            if queue.count > 0 && room()? < queue.end {
                object.call_method1(intern!(py, "make_room"), (queue.count,))?;
            }
            let left = usize::try_from(room()? - begin).unwrap_or(0);
            if left < queue.count {
                let mut of_queue =
                    self.plan.records.iter().enumerate().filter(|(_, record)| record.queue == Some(number));
                if let Some((first, _)) = of_queue.nth(left) {
                    fitting = fitting.min(first);
                }
            }
        }
        self.plan.truncate(fitting);
        Ok(())
    }

    /// The queues as they are written to; None when one was closed while others got space.
    fn load_queues(&self, py: Python<'_>) -> PyResult<Option<Vec<LiveQueue>>> {
        let mut found = Vec::with_capacity(self.plan.queues.len());
        for queue in &self.plan.queues {
            // A listener is notified: show_raw() sets the readable end.
            let live = LiveQueue::load(py, &queue.object, true)?;
            if queue.count > 0 && live.room < queue.end {
                return Ok(None);
            }
            found.push(live);
        }
        Ok(Some(found))
    }

    fn write(
        &mut self,
        py: Python<'_>,
        start: i64,
        bytes: Option<&[u8]>, // None: the file has them
        end: i64,
        live: &mut [LiveQueue],
    ) -> PyResult<Vec<Note>> {
        let log = self.log.bind(py);
        if let Some(bytes) = bytes {
            let base: i64 = log.getattr(intern!(py, "base"))?.extract()?;
            let window = Window::new(&log.getattr(intern!(py, "buffer"))?)?;
            if !window.write(start - base, bytes) {
                return Err(PyBufferError::new_err("records lie beyond their file"));
            }
        }
        log.setattr(intern!(py, "end"), end)?;
        let mut notes: Vec<Note> = Vec::new();
        let mut newest: Vec<Option<usize>> = vec![None; live.len()]; // the last notice of a queue
        for record in &self.plan.records {
            let Some(number) = record.queue else { continue };
            let queue = &mut live[number];
            let mut entry = [0; QUEUE_ENTRY_BYTES as usize];
            entry[..8].copy_from_slice(&record.physical_offset.to_be_bytes());
            entry[8..12].copy_from_slice(&(record.size as i32).to_be_bytes());
            entry[12..].copy_from_slice(&record.tags_code.to_be_bytes());
            if !queue.window.write((queue.max_offset - queue.base) * QUEUE_ENTRY_BYTES, &entry) {
                return Err(PyBufferError::new_err("a queue entry lies beyond its file"));
            }
            queue.max_offset += 1;
            queue.is_changed = true;
            if !queue.is_dirty {
                queue.is_dirty = true;
                let object = self.plan.queues[number].object.bind(py);
                object.call_method1(intern!(py, "mark_dirty"), (record.physical_offset,))?;
            }
            match newest[number].map(|at| &mut notes[at]).filter(|note| note.tags_code == record.tags_code) {
                Some(note) => note.end = queue.max_offset,
                None => {
                    newest[number] = Some(notes.len());
                    notes.push(Note { queue: number, end: queue.max_offset, tags_code: record.tags_code });
                }
            }
        }
        for (queue, planned) in live.iter_mut().zip(&self.plan.queues) {
            queue.settle(py, &planned.object)?;
        }
        self.index.entries.append(&mut self.plan.hashes);
        self.index.write_timed(self.index_files.as_ref().map(|files| files.bind(py)), &self.plan.times)?;
        Ok(notes)
    }
}

impl Plan {
    /// Keep the first `count` records alone.
    fn truncate(&mut self, count: usize) {
        while self.records.len() > count {
            let Some(record) = self.records.pop() else { return };
            if let Some(number) = record.queue {
                self.queues[number].end -= 1;
                self.queues[number].count -= 1;
            }
        }
        let hash_count = self.records.last().map_or(0, |record| record.hash_count);
        self.hashes.truncate(hash_count);
        self.times.truncate(hash_count);
    }

    fn clear(&mut self) {
        self.records.clear();
        self.hashes.clear();
        self.times.clear();
        self.queues.clear();
        self.topics.clear();
        self.hash_starts.clear();
        self.by_topic.clear();
    }
}

/// A record of any form, taken apart.
struct Raw<'a> {
    size: usize,
    queue_id: i32,
    queue_offset: i64,
    sys_flag: i32,
    store_timestamp: i64,
    topic: &'a [u8],
    properties: &'a [u8],
}

impl<'a> Raw<'a> {
    /// The record at the start of `bytes`; None for an incomplete record, one of another offset, or one for the
    /// reference implementation.
    fn cut(bytes: &'a [u8], physical_offset: i64) -> Option<Self> {
        let size = usize::try_from(word(bytes, 0)?).ok()?;
        let bytes = bytes.get(..size).filter(|bytes| bytes.len() >= RECORD_BYTES_MIN)?;
        let magic = word(bytes, 4)? as u32;
        let sys_flag = word(bytes, SYS_FLAG_AT)?;
        if !matches!(magic, MAGIC_V1 | MAGIC_V2) || long(bytes, PHYSICAL_OFFSET_AT)? != physical_offset || i64::from(sys_flag) & INNER_BATCH != 0 {
            return None;
        }
        let host_bytes = |flag: i64| if i64::from(sys_flag) & flag != 0 { 20_usize } else { 8 };
        let stored_at = BORN_TIMESTAMP_AT + 8 + host_bytes(BORN_HOST_V6);
        let tail_at = stored_at + 8 + host_bytes(STORE_HOST_V6);
        let body_at = tail_at + 16;
        let body_end = body_at.checked_add(usize::try_from(word(bytes, tail_at + 12)?).ok()?)?;
        let body = bytes.get(body_at..body_end)?;
        let (topic_at, topic_bytes) = if magic == MAGIC_V2 {
            (body_end + 2, usize::from(short(bytes, body_end)?))
        } else {
            (body_end + 1, usize::from(*bytes.get(body_end)?))
        };
        let topic = bytes.get(topic_at..topic_at + topic_bytes)?;
        let properties_at = topic_at + topic_bytes + 2;
        let properties = bytes.get(properties_at..)?;
        // With a zero in them a sector may be lost, which the reference implementation judges.
        if properties.len() != usize::from(short(bytes, properties_at - 2)?) || properties.contains(&0) {
            return None;
        }
        if !body.is_empty() && body_crc(body) != word(bytes, 8)? as u32 {
            return None;
        }
        Some(Self {
            size,
            queue_id: word(bytes, QUEUE_ID_AT)?,
            queue_offset: long(bytes, QUEUE_OFFSET_AT)?,
            sys_flag,
            store_timestamp: long(bytes, stored_at)?,
            topic,
            properties,
        })
    }
}

/// Values of a record's properties for index and queue entry; the last of equal names counts.
#[derive(Default)]
struct Pairs<'a> {
    unique_key: Option<&'a [u8]>,
    keys: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
    delay: Option<&'a [u8]>,
}

impl<'a> Pairs<'a> {
    /// None for a message of several queues, and for texts that are no UTF-8.
    fn read(text: &'a [u8]) -> Option<Self> {
        let mut found = Self::default();
        for pair in text.split(|byte| *byte == 2) {
            let Some(middle) = pair.iter().position(|byte| *byte == 1) else { continue };
            let (name, value) = (&pair[..middle], &pair[middle + 1..]);
            if value.is_empty() {
                continue;
            }
            match name {
                b"UNIQ_KEY" => found.unique_key = Some(value),
                b"KEYS" => found.keys = Some(value),
                b"TAGS" => found.tags = Some(value),
                b"DELAY" => found.delay = Some(value),
                b"INNER_MULTI_DISPATCH" => return None,
                _ => {}
            }
        }
        let texts = [found.unique_key, found.keys, found.tags];
        texts.iter().flatten().all(|text| std::str::from_utf8(text).is_ok()).then_some(found)
    }

    /// Call for each key of the index, in order, with its prefix.
    fn each_key(&self, mut call: impl FnMut(&'static [u8], &'a [u8])) {
        if let Some(key) = self.unique_key {
            call(b"", key);
        }
        for key in self.keys.unwrap_or_default().split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
            call(b"", key);
        }
        if let Some(tag) = self.tags {
            call(b"T#", tag);
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}
