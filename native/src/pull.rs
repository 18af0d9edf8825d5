//! Pulls (11, 361) that find messages in memory, or wait for the next one (aerobee/broker/fastpath/pull.py is the Python counterpart).

use std::io::Write as _;
use std::ops::Range;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::constants::{
    FRAME_BYTES_MAX, HOLD_MS_MAX, LITE_PULL_MESSAGE, NEAR_ENTRIES, PULL_COMMIT_OFFSET, PULL_COUNT_MAX, PULL_MESSAGE, PULL_SUSPEND,
    REPLY_VERSION,
};
use crate::authorization::{Authorization, Authorizations};
use crate::binary_header;
use crate::field::Name;
use crate::outcome::{Outcome, Stop};
use crate::reader::{Limits, Reader};
use crate::results::{PendingFrame, Pulled};
use crate::shared::{Burst, FrameHandler, Form, Gate, Request, Shared};

/// The family.
pub struct Pulls {
    authorizations: Authorizations,
    supports_long_poll: bool, // a pull without messages may wait for its requested time
    limits: Option<Limits>,
    key: Vec<u8>,
    head_bytes: usize, // of the last reply, before its messages
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
        let (tag_codes, filter) = (authorization.tag_codes.as_ref(), authorization.filter.as_ref());
        let reader = Reader { tag_codes, filter, limits, log, log_end, queue: &queue, max_offset, count_max };
        let Some(entries) = reader.entries(offset, reader.step(offset))? else { return Ok(Read::FallBackToHandler) };
        if is_recent
            && !limits.is_hot(&entries, log_end)
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
