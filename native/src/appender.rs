//! Appender: the only code here that writes a record, its queue entry, its index entries and the log's end, as
//! aerobee/store/append/log_appender.py does for the Python code.
//!
//! A burst works on copies of the numbers that the Python objects hold (the log's end, a queue's next offset, ...).
//! `settle` writes them into the objects before any call that may look at them, and at the burst's end. The order of an
//! append: space in queue, index and log; the record; the log's end; the queue entry; index entries; listeners are notified.
//! Nothing can fail for a peer's reasons after the first byte.

use pyo3::exceptions::{PyAssertionError, PyBufferError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::constants::{QUEUE_ENTRY_BYTES, QUEUE_OFFSET_AT};
use crate::index::Index;
use crate::outcome::{Errors, Outcome, Stop, note_failed_callback};
use crate::record::{Message, Site, lay_out, record_bytes};
use crate::topic::{LiveQueue, Queue, Topic, Topics, size_class};
use crate::window::Window;


/// Writes to one store.
pub struct Appender {
    pub store: Py<PyAny>,
    pub log_object: Py<PyAny>,
    pub errors: Errors,
    pub topics: Topics,
    pub store_host: Vec<u8>,
    numbers_object: Py<PyAny>, // the store's LogAppender, with the data of its last record
    index_object: Py<PyAny>,
    index_files: Option<Py<PyList>>, // None: the index is off
    index: Index,
    queue_type: Py<PyAny>,
    waiting: Py<PyAny>, // queues at which a consumer waits
    /// Python was called and may have left work for the event loop, or a waiter; the reader of this flag resets it.
    pub has_called: bool,
    // Records and queue entries of the run being appended.
    run: Vec<u8>,
    entries: Vec<QueueEntry>,
    entry_bytes: Vec<u8>,
}

struct QueueEntry {
    offset: i64,
    size: i32,
    tag_code: i64,
}

/// Data that a burst writes.
pub struct Writing<'py> {
    pub py: Python<'py>,
    pub now_ms: i64,
    pub born_host: Vec<u8>,
    /// Messages are shown when the disk has them.
    pub is_sync: bool,
    log: Option<LiveLog>,
    has_index_room: bool,
    live_queues: Vec<usize>,
    has_appended: bool,
    last_offset: i64,
    unsettled: Option<PyErr>, // numbers could not be written into the objects
}

/// The log's numbers while a burst writes.
struct LiveLog {
    end: i64,
    limit: i64,
    base: i64,
    window: Window,
    is_changed: bool,
}

/// Position of a stored message.
pub struct Placed {
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub size: usize,
}

impl<'py> Writing<'py> {
    pub fn new(py: Python<'py>, born_host: &[u8], now_ms: i64, is_sync: bool) -> Self {
        Self {
            py,
            now_ms,
            born_host: born_host.to_vec(),
            is_sync,
            log: None,
            has_index_room: false,
            live_queues: Vec::new(),
            has_appended: false,
            last_offset: -1,
            unsettled: None,
        }
    }
}

impl Appender {
    pub fn new(store: &Bound<'_, PyAny>, store_host: Vec<u8>, waiting: Py<PyAny>) -> PyResult<Self> {
        let py = store.py();
        let index = store.getattr("index")?;
        let files = index.getattr("files")?.cast_into::<PyList>()?.unbind();
        Ok(Self {
            log_object: store.getattr("log")?.unbind(),
            numbers_object: store.getattr("appender")?.unbind(),
            index_files: index.getattr("is_enabled")?.is_truthy()?.then_some(files),
            index_object: index.unbind(),
            index: Index::default(),
            errors: Errors::new(py)?,
            queue_type: py.import("aerobee.store.queue.consume_queue")?.getattr("ConsumeQueue")?.unbind(),
            store: store.clone().unbind(),
            store_host,
            topics: Topics::default(),
            waiting,
            has_called: false,
            run: Vec::new(),
            entries: Vec::new(),
            entry_bytes: Vec::new(),
        })
    }

    /// Add a topic to the list; the caller keeps its number.
    pub fn add_topic(&mut self, py: Python<'_>, config: &Bound<'_, PyAny>) -> Outcome<usize> {
        let topic = self.errors.check(py, Topic::load(py, config))?;
        Ok(self.topics.add(topic))
    }

    /// Add a queue of a listed topic to the list of queues. A queue that needs more than an entry is left to the
    /// handlers.
    pub fn add_queue(&mut self, py: Python<'_>, topic: usize, id: i64, reply_start: Vec<u8>) -> Outcome<usize> {
        self.has_called = true;
        let name = self.topics.list[topic].py_name.clone_ref(py);
        let found = self.store.bind(py).call_method1(intern!(py, "queue"), (&name, id));
        let object = self.errors.check(py, found)?;
        if !self.is_plain_queue(&object) {
            return Err(Stop::Slow);
        }
        let number = i32::try_from(id).map_err(|_| Stop::Slow)?;
        let key = (name, id).into_pyobject(py).map_err(Stop::Fault)?.unbind();
        self.topics.queues.push(Queue { object: object.unbind(), key, id: number, reply_start, live: None });
        Ok(self.topics.queues.len() - 1)
    }

    /// Add queue 0 of a topic that is not listed to the list of queues.
    pub fn add_lone_queue(&mut self, py: Python<'_>, name: &str, object: Py<PyAny>) -> Outcome<usize> {
        let key = (name, 0).into_pyobject(py).map_err(Stop::Fault)?.unbind();
        self.topics.queues.push(Queue { object, key, id: 0, reply_start: Vec::new(), live: None });
        Ok(self.topics.queues.len() - 1)
    }

    /// Whether a queue is a plain consume queue.
    pub fn is_plain_queue(&self, queue: &Bound<'_, PyAny>) -> bool {
        queue.get_type().is(self.queue_type.bind(queue.py()))
    }

    /// Write a message; return where it stands.
    pub fn append(
        &mut self,
        writing: &mut Writing<'_>,
        topic: usize,
        queue: usize,
        message: &Message<'_>,
        hashes: &[i32],
    ) -> Outcome<Placed> {
        let size = self.record_bytes(writing, topic, message.body.len(), message.properties.len());
        let offset = self.make_room(writing, queue, 1, hashes.len(), size)?;
        self.append_run(writing, topic, queue, offset, std::iter::once((message, hashes)))
    }

    /// Write messages of one queue back to back, where make_room() has made space for all of them; return where the first one
    /// stands, and the bytes of all.
    pub fn append_run<'m>(
        &mut self,
        writing: &mut Writing<'_>,
        topic: usize,
        queue: usize,
        offset: i64,
        messages: impl Iterator<Item = (&'m Message<'m>, &'m [i32])>,
    ) -> Outcome<Placed> {
        let live = self.live(writing, queue).map_err(Stop::Fault)?;
        let (first, mut next, mut last) = (live.max_offset, offset, offset);
        let unindexed = self.index.entries.len();
        self.run.clear();
        self.entries.clear();
        let mut tag_code = 0;
        for (number, (message, hashes)) in messages.enumerate() {
            let site = Site {
                queue_id: self.topics.queues[queue].id,
                queue_offset: first + number as i64,
                physical_offset: next,
                store_timestamp: writing.now_ms,
                born_host: &writing.born_host,
                store_host: &self.store_host,
                topic: &self.topics.list[topic].field,
            };
            let start = self.run.len();
            if let Err(stop) = lay_out(&mut self.run, &site, message) {
                self.index.entries.truncate(unindexed);
                return Err(stop);
            }
            let size = self.run.len() - start;
            (last, tag_code) = (next, message.tag_code);
            self.entries.push(QueueEntry { offset: next, size: size as i32, tag_code });
            self.index.entries.extend(hashes.iter().map(|hash| (*hash, next)));
            if let Some(class) = size_class(size) {
                self.topics.list[topic].larger[class] += 1;
            }
            next += size as i64;
        }
        // Records first, entries second: a consumer that sees the entry reads the record, and recovery recreates
        // missing entries.
        if let Err(error) = self.write(writing, queue, offset) {
            writing.last_offset = -1;
            self.index.entries.truncate(unindexed);
            return Err(Stop::Fault(self.broken(writing.py, offset, error)));
        }
        self.index.room -= (self.index.entries.len() - unindexed) as i64;
        writing.has_appended = true;
        self.topics.count(topic, self.entries.len() as u64, self.run.len() as u64);
        writing.last_offset = last;
        self.announce(writing, queue, last, tag_code).map_err(Stop::Fault)?;
        Ok(Placed { queue_offset: first, physical_offset: offset, size: self.run.len() })
    }

    /// The next offset of a queue in which one more entry has space. Files may roll.
    pub fn room_for_entry(&mut self, writing: &mut Writing<'_>, queue: usize) -> Outcome<i64> {
        let live = self.live(writing, queue).map_err(Stop::Fault)?;
        if live.max_offset >= live.room {
            self.make_queue_room(writing, queue, 1)?;
        }
        let live = self.live(writing, queue).map_err(Stop::Fault)?;
        if live.max_offset < live.room { Ok(live.max_offset) } else { Err(Stop::Slow) }
    }

    /// Write entries of the record that was just appended in further queues, whose space was taken.
    pub fn add_entries(&mut self, writing: &mut Writing<'_>, queues: &[usize], placed: &Placed, tag_code: i64) -> PyResult<()> {
        for queue in queues {
            if let Err(error) = self.add_entry(writing, *queue, placed, tag_code) {
                return Err(self.broken(writing.py, placed.physical_offset, error));
            }
        }
        queues.iter().try_for_each(|queue| self.announce(writing, *queue, placed.physical_offset, tag_code))
    }

    fn add_entry(&mut self, writing: &mut Writing<'_>, queue: usize, placed: &Placed, tag_code: i64) -> PyResult<()> {
        let live = self.live(writing, queue)?;
        check(live.base <= live.max_offset && live.max_offset < live.room, "an entry does not continue its queue")?;
        let mut bytes = [0; QUEUE_ENTRY_BYTES as usize];
        bytes[..8].copy_from_slice(&placed.physical_offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&(placed.size as i32).to_be_bytes());
        bytes[12..].copy_from_slice(&tag_code.to_be_bytes());
        if !live.window.write((live.max_offset - live.base) * QUEUE_ENTRY_BYTES, &bytes) {
            return Err(PyBufferError::new_err("a queue entry lies beyond its file"));
        }
        live.max_offset += 1;
        live.is_changed = true;
        if !live.is_dirty {
            live.is_dirty = true;
            let object = &self.topics.queues[queue].object;
            object.bind(writing.py).call_method1(intern!(writing.py, "mark_dirty"), (placed.physical_offset,))?;
        }
        Ok(())
    }

    /// Whether a listener needs each message of the queue: a run of several must come one by one then.
    pub fn is_awaited(&mut self, writing: &mut Writing<'_>, queue: usize) -> PyResult<bool> {
        Ok(self.live(writing, queue)?.notify)
    }

    /// The store time of the youngest record, ms.
    pub fn last_store_timestamp(&self, py: Python<'_>) -> PyResult<i64> {
        self.numbers_object.bind(py).getattr(intern!(py, "last_store_timestamp"))?.extract()
    }

    /// How many index entries wait for the end of the burst.
    pub fn unwritten_entry_count(&self) -> usize {
        self.index.entries.len()
    }

    /// The bytes of a record of this topic.
    pub fn record_bytes(&self, writing: &Writing<'_>, topic: usize, body_bytes: usize, properties_bytes: usize) -> usize {
        let field = &self.topics.list[topic].field;
        record_bytes(&writing.born_host, &self.store_host, field, body_bytes, properties_bytes)
    }

    /// Take space for `count` records of `size` bytes in all, back to back in one file, their entries in one file of the
    /// queue, and their index entries. Returns where the first one goes. Files may roll.
    pub fn make_room(
        &mut self,
        writing: &mut Writing<'_>,
        queue: usize,
        count: usize,
        hash_count: usize,
        size: usize,
    ) -> Outcome<i64> {
        let live = self.live(writing, queue).map_err(Stop::Fault)?;
        if live.max_offset + count as i64 > live.room {
            self.make_queue_room(writing, queue, count)?;
            let live = self.live(writing, queue).map_err(Stop::Fault)?;
            if live.max_offset + count as i64 > live.room {
                return Err(Stop::Slow);
            }
        }
        self.make_index_room(writing, hash_count)?;
        self.reserve(writing, size)
    }

    /// Count messages stored in one topic for another topic: the one to which they were sent.
    pub fn count_for(&mut self, stored: usize, topic: usize, size: usize) {
        if let Some(class) = size_class(size) {
            self.topics.list[stored].larger[class] -= 1;
            self.topics.list[topic].larger[class] += 1;
        }
        let size = size as u64;
        self.topics.list[stored].count -= 1;
        self.topics.list[stored].byte_count -= size;
        self.topics.count(topic, 1, size);
        self.topics.count_request(topic);
    }

    /// Copy `size` bytes at `physical_offset` of the log to `out`; false when they are not in its current file.
    pub fn read_current(
        &mut self,
        writing: &mut Writing<'_>,
        physical_offset: i64,
        size: usize,
        out: &mut Vec<u8>,
    ) -> PyResult<bool> {
        let log = self.log(writing)?;
        Ok(log.window.append_to(physical_offset - log.base, size, out))
    }

    /// The size field of the record at `physical_offset`, when that lies in the log's current file.
    pub fn size_in_current(&mut self, writing: &mut Writing<'_>, physical_offset: i64) -> PyResult<Option<u32>> {
        let log = self.log(writing)?;
        Ok(log.window.read(physical_offset - log.base).map(u32::from_be_bytes))
    }

    /// Physical offset of the log's current file.
    pub fn current_base(&mut self, writing: &mut Writing<'_>) -> PyResult<i64> {
        Ok(self.log(writing)?.base)
    }

    /// Write the numbers of this burst into the Python objects.
    pub fn settle(&mut self, writing: &mut Writing<'_>) -> PyResult<()> {
        let settled = self.settle_numbers(writing);
        if let Err(error) = &settled {
            // Messages answered before are in the files, but the Python objects lack them: the burst's end reports this
            // error, whatever follows.
            writing.unsettled.get_or_insert_with(|| error.clone_ref(writing.py));
        }
        settled
    }

    fn settle_numbers(&mut self, writing: &mut Writing<'_>) -> PyResult<()> {
        let py = writing.py;
        if let Some(log) = writing.log.as_mut().filter(|log| log.is_changed) {
            log.is_changed = false;
            self.log_object.bind(py).setattr(intern!(py, "end"), log.end)?;
        }
        for number in &writing.live_queues {
            let queue = &mut self.topics.queues[*number];
            if let Some(live) = queue.live.as_mut() {
                live.settle(py, &queue.object)?;
            }
        }
        Ok(())
    }

    /// Settle and give every buffer back, before a call that may map, unmap or roll files.
    pub fn release(&mut self, writing: &mut Writing<'_>) -> PyResult<()> {
        let settled = self.settle(writing);
        writing.log = None;
        for number in writing.live_queues.drain(..) {
            self.topics.queues[number].live = None;
        }
        settled
    }

    /// Work that a burst defers to its end. Returns whether something was stored.
    pub fn end(&mut self, writing: &mut Writing<'_>) -> PyResult<bool> {
        let py = writing.py;
        let is_whole = self.newest_is_whole(writing);
        let released = self.release(writing).and(is_whole).and(writing.unsettled.take().map_or(Ok(()), Err));
        if !std::mem::take(&mut writing.has_appended) {
            return released.map(|()| false);
        }
        let indexed = self.write_index(writing);
        let numbers = self.numbers_object.bind(py);
        numbers.setattr(intern!(py, "last_store_timestamp"), writing.now_ms)?;
        numbers.setattr(intern!(py, "last_record_offset"), writing.last_offset)?;
        released.and(indexed).map(|()| true)
    }

    /// The newest record of the burst, read again, ends where the log does, or a file was begun behind it.
    fn newest_is_whole(&self, writing: &Writing<'_>) -> PyResult<()> {
        let Some(log) = writing.log.as_ref().filter(|log| writing.last_offset >= log.base) else { return Ok(()) };
        let size = log.window.read(writing.last_offset - log.base).map(i32::from_be_bytes);
        check(
            size.is_some_and(|size| writing.last_offset + i64::from(size) == log.end),
            "the newest record does not end where the log does",
        )
    }

    /// The record at `offset` was not finished: the store takes no more messages, and the error says so.
    fn broken(&self, py: Python<'_>, offset: i64, error: PyErr) -> PyErr {
        let cause = error.clone_ref(py);
        match self.numbers_object.bind(py).call_method1(intern!(py, "broken"), (offset, error.into_value(py))) {
            Ok(failure) => {
                let failure = PyErr::from_value(failure);
                failure.set_cause(py, Some(cause));
                failure
            }
            Err(other) => other,
        }
    }

    /// Write the run's records from `offset` on, and their queue entries. A failure here is an internal error, because
    /// space was reserved.
    fn write(&mut self, writing: &mut Writing<'_>, queue: usize, offset: i64) -> PyResult<()> {
        let log = writing.log.as_mut().ok_or_else(|| PyValueError::new_err("the log was not loaded"))?;
        let state = &mut self.topics.queues[queue];
        let live = state.live.as_mut().ok_or_else(|| PyValueError::new_err("the queue was not loaded"))?;
        // The records continue the log within its file, and their entries the queue: nothing is written over.
        let (end, next_offset) = (offset + self.run.len() as i64, live.max_offset + self.entries.len() as i64);
        check(log.base <= offset && offset == log.end && end <= log.limit, "a record does not continue the log")?;
        check(live.base <= live.max_offset && next_offset <= live.room, "an entry does not continue its queue")?;
        self.entry_bytes.clear();
        for (entry, queue_offset) in self.entries.iter().zip(live.max_offset..) {
            let record = self.run.get((entry.offset - offset) as usize..).unwrap_or_default();
            check(names(record, entry.size, queue_offset, entry.offset), "a record does not say where it stands")?;
            let mut bytes = [0; QUEUE_ENTRY_BYTES as usize];
            bytes[..8].copy_from_slice(&entry.offset.to_be_bytes());
            bytes[8..12].copy_from_slice(&entry.size.to_be_bytes());
            bytes[12..].copy_from_slice(&entry.tag_code.to_be_bytes());
            self.entry_bytes.extend_from_slice(&bytes);
        }
        if !log.window.write(offset - log.base, &self.run) {
            return Err(PyBufferError::new_err("a record lies beyond its file"));
        }
        log.end = end;
        log.is_changed = true;
        let entries_at = (live.max_offset - live.base) * QUEUE_ENTRY_BYTES;
        if !live.window.write(entries_at, &self.entry_bytes) {
            return Err(PyBufferError::new_err("a queue entry lies beyond its file"));
        }
        debug_assert!({
            let mut written = Vec::new();
            live.window.append_to(entries_at, self.entry_bytes.len(), &mut written) && written == self.entry_bytes
        });
        live.max_offset = next_offset;
        live.is_changed = true;
        if !live.is_dirty {
            live.is_dirty = true;
            state.object.bind(writing.py).call_method1(intern!(writing.py, "mark_dirty"), (offset,))?;
        }
        Ok(())
    }

    /// Tell those who wait at the queue of its newest message. A failure of theirs is logged: the message is stored.
    fn announce(&mut self, writing: &mut Writing<'_>, queue: usize, offset: i64, tag_code: i64) -> PyResult<()> {
        if !self.topics.queues[queue].live.as_ref().is_some_and(|live| live.notify) {
            return Ok(());
        }
        self.settle(writing)?;
        self.has_called = true;
        let py = writing.py;
        let arguments = (&self.topics.queues[queue].object, offset, writing.now_ms, tag_code);
        let told = self.store.bind(py).call_method1(intern!(py, "announce"), arguments);
        told.map(|_| ()).or_else(|error| note_failed_callback(py, error, "telling those who wait for a message"))
    }

    /// The log's numbers, read from the Python object at their first use in a burst.
    fn log<'w>(&self, writing: &'w mut Writing<'_>) -> PyResult<&'w mut LiveLog> {
        if writing.log.is_none() {
            let py = writing.py;
            let log = self.log_object.bind(py);
            writing.log = Some(LiveLog {
                end: log.getattr(intern!(py, "end"))?.extract()?,
                limit: log.getattr(intern!(py, "limit"))?.extract()?,
                base: log.getattr(intern!(py, "base"))?.extract()?,
                window: Window::new(&log.getattr(intern!(py, "buffer"))?)?,
                is_changed: false,
            });
        }
        writing.log.as_mut().ok_or_else(|| PyValueError::new_err("the log was not loaded"))
    }

    /// The queue's numbers, from the Python object when this burst has none yet.
    fn live<'s>(&'s mut self, writing: &mut Writing<'_>, queue: usize) -> PyResult<&'s mut LiveQueue> {
        let py = writing.py;
        let waiting = self.waiting.bind(py);
        let state = &mut self.topics.queues[queue];
        if state.live.is_none() {
            let notify = writing.is_sync || (!waiting.is_empty()? && waiting.contains(&state.key)?);
            state.live = Some(LiveQueue::load(py, &state.object, notify)?);
            writing.live_queues.push(queue);
        }
        state.live.as_mut().ok_or_else(|| PyValueError::new_err("the queue was not loaded"))
    }

    /// Take space for queue entries; the queue's numbers are loaded again.
    fn make_queue_room(&mut self, writing: &mut Writing<'_>, queue: usize, count: usize) -> Outcome<()> {
        let py = writing.py;
        self.release(writing).map_err(Stop::Fault)?;
        self.has_called = true;
        let made = self.topics.queues[queue].object.bind(py).call_method1(intern!(py, "make_room"), (count,));
        self.errors.check(py, made).map(|_| ())
    }

    /// Take space for `count` index entries, in a new file if need be.
    fn make_index_room(&mut self, writing: &mut Writing<'_>, count: usize) -> Outcome<()> {
        let py = writing.py;
        if !writing.has_index_room {
            self.load_index_room(py, false)?;
            writing.has_index_room = true;
        }
        if self.index.room >= count as i64 {
            return Ok(());
        }
        self.write_index(writing).map_err(Stop::Fault)?;
        self.has_called = true;
        let index = self.index_object.clone_ref(py).into_bound(py);
        let has_room = index.call_method1(intern!(py, "has_room"), (count,)).and_then(|has| has.is_truthy());
        if !self.errors.check(py, has_room)? {
            let made = index.call_method1(intern!(py, "make_room"), (count, writing.now_ms));
            self.errors.check(py, made)?;
        }
        if !index.getattr(intern!(py, "is_enabled")).and_then(|is| is.is_truthy()).map_err(Stop::Fault)? {
            self.index_files = None; // the index was disabled
        }
        self.load_index_room(py, true)
    }

    fn load_index_room(&mut self, py: Python<'_>, again: bool) -> Outcome<()> {
        self.index.load_room(self.index_files.as_ref().map(|files| files.bind(py)), again).map_err(Stop::Fault)
    }

    /// Reserve the offset for `size` bytes of records; the log may roll to its next file.
    fn reserve(&mut self, writing: &mut Writing<'_>, size: usize) -> Outcome<i64> {
        let py = writing.py;
        let log = self.log(writing).map_err(Stop::Fault)?;
        if log.end + size as i64 <= log.limit {
            return Ok(log.end);
        }
        self.release(writing).map_err(Stop::Fault)?;
        self.has_called = true;
        let placed = self.log_object.bind(py).call_method1(intern!(py, "reserve"), (size,));
        let offset = self.errors.check(py, placed)?.extract::<i64>().map_err(Stop::Fault)?;
        self.log(writing).map_err(Stop::Fault)?;
        Ok(offset)
    }

    /// Write the index entries collected so far.
    fn write_index(&mut self, writing: &mut Writing<'_>) -> PyResult<()> {
        self.index.write(self.index_files.as_ref().map(|files| files.bind(writing.py)), writing.now_ms)
    }
}

/// Check an invariant that only an internal error can break: an AssertionError, after which the store accepts no
/// message.
fn check(holds: bool, what: &'static str) -> PyResult<()> {
    if holds { Ok(()) } else { Err(PyAssertionError::new_err(what)) }
}

/// Whether the record's header has this size, queue offset and physical offset.
fn names(record: &[u8], size: i32, queue_offset: i64, physical_offset: i64) -> bool {
    record.get(..4) == Some(size.to_be_bytes().as_slice())
        && record.get(QUEUE_OFFSET_AT..QUEUE_OFFSET_AT + 8) == Some(queue_offset.to_be_bytes().as_slice())
        && record.get(QUEUE_OFFSET_AT + 8..QUEUE_OFFSET_AT + 16) == Some(physical_offset.to_be_bytes().as_slice())
}
