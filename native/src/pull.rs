//! Pulls (11, 361) that find messages in memory, or wait for the next one (aerobee/broker/fastpath/pull.py is the Python counterpart).

use std::io::Write as _;
use std::ops::Range;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::constants::{
    FILLER_SIZE, FRAME_BYTES_MAX, HOLD_MS_MAX, LITE_PULL_MESSAGE, NEAR_ENTRIES, PULL_COMMIT_OFFSET, PULL_COUNT_MAX,
    PULL_MESSAGE, PULL_SUSPEND, QUEUE_ENTRY_BYTES, REPLY_VERSION, RESULT_BYTES_MAX, RUN_BYTES_MAX, SCATTERED_COUNT_MAX,
};
use crate::authorization::{Authorization, Authorizations};
use crate::binary_header;
use crate::field::Name;
use crate::filter::Unknown;
use crate::outcome::{Outcome, Stop};
use crate::results::{PendingFrame, Pulled};
use crate::segment::Segment;
use crate::shared::{Burst, FrameHandler, Form, Gate, Request, Shared};
use crate::window::Window;

const ENTRY_BYTES: usize = QUEUE_ENTRY_BYTES as usize;

/// The family.
pub struct Pulls {
    authorizations: Authorizations,
    supports_long_poll: bool, // a pull without messages may wait for its requested time
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

/// Parameters of a pull.
struct Asked {
    queue_id: i64,
    offset: i64,
    count_max: i64,
    commit: Option<i64>,
}

/// Result of a pull.
enum Read {
    Found(Found),
    Waits,
    FallBackToHandler,
}

/// Result of a read; the records are in a separate buffer.
struct Found {
    next_offset: i64,
    count: i64,
    is_slow: bool, // its last record is beyond the memory share
    min_offset: i64,
    max_offset: i64,
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

impl FrameHandler for Pulls {
    fn codes(&self) -> &'static [i64] {
        &[PULL_MESSAGE, LITE_PULL_MESSAGE]
    }

    fn gate(&self) -> Gate {
        Gate::Pulls
    }

    fn is_silent(&self) -> bool {
        true
    }

    /// The reply goes to the burst's replies, the effects to record to its pulls.
    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        if request.flag != 0 {
            return Err(Stop::Slow);
        }
        let mut key = std::mem::take(&mut self.key);
        let outcome = self.pull(shared, burst, request, &mut key);
        self.key = key;
        outcome
    }

    fn forget_topics(&mut self) {
        self.authorizations.forget();
    }

    fn forget_authorizations(&mut self) {
        self.authorizations.forget();
    }
}

impl Pulls {
    pub fn new(find: Py<PyAny>, supports_long_poll: bool) -> Self {
        let authorizations = Authorizations::new(find);
        Self { authorizations, supports_long_poll, limits: None, key: Vec::new(), head_bytes: 0 }
    }

    fn pull(
        &mut self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        request: &Request<'_>,
        key: &mut Vec<u8>,
    ) -> Outcome<()> {
        let (py, fields) = (burst.writing.py, request.fields);
        let number = |name: Name| fields.get(name).number().ok_or(Stop::Slow);
        let flags = number(Name::SysFlag)?;
        self.authorizations.find(py, &shared.appender.errors, key, request.code, flags, fields)?;
        let asked = Asked {
            queue_id: number(Name::QueueId)?,
            offset: number(Name::QueueOffset)?,
            count_max: number(Name::MaxMsgNums)?.clamp(1, PULL_COUNT_MAX),
            commit: if flags & PULL_COMMIT_OFFSET != 0 { Some(number(Name::CommitOffset)?) } else { None },
        };
        // Messages stored by this burst must be found, too; and reading may close a file that it writes to.
        shared.appender.release(&mut burst.writing).map_err(Stop::Fault)?;
        let may_wait = self.supports_long_poll && flags & PULL_SUSPEND != 0;
        let start = burst.replies.len();
        let head = self.head_bytes;
        burst.replies.resize(start + head, 0);
        let read = self.read(shared, py, key, &asked, may_wait, &mut burst.replies);
        let outcome = shared.appender.errors.check(py, read).and_then(|read| match read {
            Read::Found(found) => self.answer(shared, burst, key, request, &asked, &found, start..start + head),
            Read::Waits => self.wait(burst, key, request, &asked, start),
            Read::FallBackToHandler => Err(Stop::Slow),
        });
        if outcome.is_err() {
            burst.replies.truncate(start);
        }
        outcome
    }

    /// Append messages to `out`.
    fn read(
        &mut self,
        shared: &Shared,
        py: Python<'_>,
        key: &[u8],
        asked: &Asked,
        may_wait: bool,
        out: &mut Vec<u8>,
    ) -> PyResult<Read> {
        let store = shared.appender.store.bind(py);
        let config = store.getattr(intern!(py, "config"))?;
        if self.limits.as_ref().is_none_or(|limits| !limits.config.is(&config)) {
            self.limits = Some(Limits::load(&config)?);
        }
        let (Some(authorization), Some(limits)) = (self.authorizations.get(key), self.limits.as_ref()) else {
            return Ok(Read::FallBackToHandler);
        };
        let Asked { queue_id, offset, count_max, .. } = *asked;
        if !(0..authorization.queue_count).contains(&queue_id) {
            return Ok(Read::FallBackToHandler);
        }
        let queues = store.getattr(intern!(py, "queues"))?.cast_into::<PyDict>()?;
        let Some(queue) = queues.get_item((&authorization.topic, queue_id))? else { return Ok(Read::FallBackToHandler) };
        if !shared.appender.is_plain_queue(&queue) {
            return Ok(Read::FallBackToHandler);
        }
        let max_offset: i64 = queue.getattr(intern!(py, "readable_max"))?.extract()?;
        if may_wait && offset == max_offset && max_offset > 0 {
            return Ok(Read::Waits);
        }
        let min_offset: i64 = queue.getattr(intern!(py, "min_offset"))?.extract()?;
        if offset < min_offset || offset >= max_offset {
            return Ok(Read::FallBackToHandler);
        }
        let is_recent = max_offset - offset <= NEAR_ENTRIES;
        let most = count_max.min(limits.hot_count.max(limits.cold_count));
        if !is_recent && authorization.is_cold(store, &queue, queue_id, offset, most)? {
            return Ok(Read::FallBackToHandler);
        }
        let log = shared.appender.log_object.bind(py);
        let log_end: i64 = log.getattr(intern!(py, "end"))?.extract()?;
        let reader = Reader { authorization, limits, log, log_end, queue: &queue, max_offset, count_max };
        let Some(entries) = reader.entries(offset, reader.step(offset))? else { return Ok(Read::FallBackToHandler) };
        if is_recent
            && !is_hot(&entries, log_end, limits)
            && authorization.is_cold(store, &queue, queue_id, offset, most)?
        {
            return Ok(Read::FallBackToHandler);
        }
        let read = reader.collect(offset, entries, out)?.filter(|(_, count, _)| *count > 0);
        Ok(read.map_or(Read::FallBackToHandler, |(next_offset, count, last_offset)| {
            let is_slow = log_end - last_offset > limits.memory_bytes;
            Read::Found(Found { next_offset, count, is_slow, min_offset, max_offset })
        }))
    }

    /// Complete and record the reply to a pull. Its messages are at the end of the burst's replies, behind space for
    /// its head.
    #[allow(clippy::too_many_arguments)]
    fn answer(
        &mut self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        key: &[u8],
        request: &Request<'_>,
        asked: &Asked,
        found: &Found,
        room: Range<usize>,
    ) -> Outcome<()> {
        let authorization = self.authorizations.get(key).ok_or(Stop::Slow)?;
        let byte_count = burst.replies.len() - room.end;
        let mut head = std::mem::take(&mut shared.scratch.head);
        head.clear();
        write_head(&mut head, authorization, request, found, byte_count);
        let is_too_long = head.len() + byte_count > FRAME_BYTES_MAX;
        let start = room.start;
        if head.len() == room.len() {
            burst.replies[room].copy_from_slice(&head);
        } else {
            // The next one will fit: heads of one consumer differ in length when a number gets another digit.
            self.head_bytes = head.len();
            burst.replies.splice(room, head.iter().copied());
        }
        shared.scratch.head = head;
        if is_too_long {
            return Err(Stop::Slow);
        }
        burst.pulled_bytes += burst.replies.len() - start;
        shared.handed_out.add(burst.writing.py, &authorization.object, found.count as u64, byte_count as u64);
        burst.pulled.push(Pulled {
            authorization: authorization.object.clone_ref(burst.writing.py),
            queue_id: asked.queue_id,
            next_offset: found.next_offset,
            commit_offset: asked.commit,
            held: None,
            max_offset: found.max_offset,
        });
        Ok(())
    }

    /// Leave a pull without a reply: it is to wait for the next message of its queue.
    fn wait(
        &self,
        burst: &mut Burst<'_>,
        key: &[u8],
        request: &Request<'_>,
        asked: &Asked,
        start: usize,
    ) -> Outcome<()> {
        let timeout_ms = request.fields.get(Name::SuspendTimeoutMillis);
        let hold_ms = if timeout_ms.is_missing() { 0 } else { timeout_ms.number().ok_or(Stop::Slow)? };
        let authorization = self.authorizations.get(key).ok_or(Stop::Slow)?;
        burst.replies.truncate(start);
        let held = PendingFrame { frame: request.frame.to_vec(), hold_ms: hold_ms.clamp(0, HOLD_MS_MAX), code: request.code };
        burst.pulled.push(Pulled {
            authorization: authorization.object.clone_ref(burst.writing.py),
            queue_id: asked.queue_id,
            next_offset: asked.offset,
            commit_offset: asked.commit,
            held: Some(held),
            max_offset: asked.offset,
        });
        Ok(())
    }
}

/// The head of a reply: everything before its messages.
fn write_head(head: &mut Vec<u8>, authorization: &Authorization, request: &Request<'_>, found: &Found, body_bytes: usize) {
    let suggested = if found.is_slow { &authorization.slow_broker_id } else { &authorization.broker_id };
    let opaque = request.opaque;
    if request.form == Form::Json {
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
            authorization.topic_sys_flag,
            authorization.group_sys_flag,
            REPLY_VERSION,
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
            (b"topicSysFlag", authorization.topic_sys_flag.as_bytes()),
            (b"groupSysFlag", authorization.group_sys_flag.as_bytes()),
        ];
        binary_header::write_reply(head, opaque, b"FOUND", &entries, body_bytes);
    }
}

/// Whether the first requested record is so hot that it is surely in memory.
fn is_hot(entry: &[u8], log_end: i64, limits: &Limits) -> bool {
    entry.first_chunk::<8>().is_some_and(|offset| log_end - i64::from_be_bytes(*offset) <= limits.hot_read_bytes)
}

/// One read of a queue, equal to MessageReader._collect().
struct Reader<'r, 'py> {
    authorization: &'r Authorization,
    limits: &'r Limits,
    log: &'r Bound<'py, PyAny>,
    log_end: i64,
    queue: &'r Bound<'py, PyAny>,
    max_offset: i64,
    count_max: i64,
}

impl Reader<'_, '_> {
    /// Number of entries read together: a read that is full after 32 must not copy 800 of them.
    fn step(&self, at: i64) -> i64 {
        let count = if self.authorization.tag_codes.is_none() { self.count_max } else { self.budget() };
        count.min(self.max_offset - at)
    }

    fn budget(&self) -> i64 {
        self.limits.entry_budget.max(self.count_max)
    }

    /// Up to `count` existing entries from `at` on, to the end of their file; None without any.
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
        let sure_from = self.log_end.saturating_sub(limits.hot_read_bytes);
        let (hot, cold) = (self.count_max.min(limits.hot_count), self.count_max.min(limits.cold_count));
        let filter = self.authorization.filter.as_ref();
        let mut segment: Option<Segment> = None;
        let body_at = out.len();
        let (mut at, mut count, mut last, mut run_end) = (offset, 0, -1, 0);
        loop {
            for entry in entries.chunks_exact(ENTRY_BYTES) {
                let (physical_offset, size, code) = cut_entry(entry);
                let is_filler = size == FILLER_SIZE && physical_offset == 0;
                if is_filler || self.authorization.tag_codes.as_ref().is_some_and(|codes| !codes.contains(&code)) {
                    at += 1;
                    continue;
                }
                if count > 0 {
                    let is_hot = physical_offset >= hot_from;
                    let (most, bytes) = if is_hot { (hot, limits.hot_bytes) } else { (cold, limits.cold_bytes) };
                    if count >= most || (out.len() - body_at) as i64 + i64::from(size) > bytes {
                        return Ok(Some((at, count, last)));
                    }
                    if count >= SCATTERED_COUNT_MAX && run_end < physical_offset && physical_offset < sure_from {
                        return Ok(Some((at, count, last)));
                    }
                } else {
                    run_end = physical_offset.saturating_add(RUN_BYTES_MAX);
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
                        Err(Unknown) => return Ok(None),
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

/// physical offset, size, tags code
fn cut_entry(entry: &[u8]) -> (i64, i32, i64) {
    let (mut offset, mut size, mut code) = ([0; 8], [0; 4], [0; 8]);
    offset.copy_from_slice(&entry[..8]);
    size.copy_from_slice(&entry[8..12]);
    code.copy_from_slice(&entry[12..20]);
    (i64::from_be_bytes(offset), i32::from_be_bytes(size), i64::from_be_bytes(code))
}
