//! What a pop takes from its queues (PopEngine.take of aerobee/broker/pop/engine.py is the reference). Nothing is changed here:
//! pop_records.rs writes the check points.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Write as _;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::appender::Appender;
use crate::constants::{FRAME_BYTES_MAX, NEAR_ENTRIES, QUEUE_OFFSET_AT, REPLY_VERSION};
use crate::reader::{Limits, Reader};

/// What equal pops share, checked before.
#[pyclass(frozen, module = "aerobee_native")]
pub struct PopPlan {
    pub own: Source,
    pub retries: Vec<Source>,
    pub group: Py<PyString>,
    pub broker_name: Py<PyString>,
    pub invisible_ms: i64,
    queue_id: Option<i64>, // None: any queue
    count_max: i64,
    tag_codes: Option<HashSet<i64>>,
}

/// A topic that a pop reads: its own, or a retry topic.
pub struct Source {
    pub topic: Py<PyString>,
    pub retry: String, // the handle's r
    queue_count: i64,
    key: Py<PyTuple>, // of the offset table
}

/// The order in which queues are read.
#[derive(Clone, Copy)]
pub struct Turn {
    pub start: i64,
    pub retry_first: bool,
    pub highest_first: bool,
}

/// Messages of one queue.
pub struct Share {
    source: usize, // number among the sources; 0: the own topic
    pub queue_id: i64,
    pub offsets: Vec<i64>,
    pub next_offset: i64,
    pub size: usize,
}

/// Messages that a pop found.
pub struct Found {
    pub shares: Vec<Share>,
    pub rest: i64,
    count: i64,
    body: Vec<u8>,
}

/// Where a pop reads.
pub struct Place<'a, 'py> {
    pub appender: &'a Appender,
    pub limits: &'a Limits,
    pub offsets: &'a Bound<'py, PyDict>, // (topic, group) -> queue id -> the next offset
}

impl PopPlan {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        topic: &Bound<'_, PyString>,
        group: &Bound<'_, PyString>,
        broker_name: &Bound<'_, PyString>,
        queue_id: i64,
        queue_count: i64,
        count_max: i64,
        invisible_ms: i64,
        retries: Vec<(Bound<'_, PyString>, String, i64)>,
        tag_codes: Option<HashSet<i64>>,
    ) -> PyResult<Self> {
        let py = topic.py();
        let source = |topic: Bound<'_, PyString>, retry: String, queue_count: i64| {
            let key = (&topic, group).into_pyobject(py)?.unbind();
            PyResult::Ok(Source { topic: topic.unbind(), retry, queue_count, key })
        };
        Ok(Self {
            own: source(topic.clone(), "0".to_owned(), queue_count)?,
            retries: retries.into_iter().map(|(topic, retry, count)| source(topic, retry, count)).collect::<PyResult<_>>()?,
            group: group.clone().unbind(),
            broker_name: broker_name.clone().unbind(),
            invisible_ms,
            queue_id: (queue_id >= 0).then_some(queue_id),
            count_max,
            tag_codes,
        })
    }

    pub fn source(&self, share: &Share) -> &Source {
        share.source.checked_sub(1).and_then(|at| self.retries.get(at)).unwrap_or(&self.own)
    }

    /// What this pop gets. None: the reference implementation has to do it, also where there is nothing.
    pub fn read(&self, place: &Place<'_, '_>, turn: Turn) -> PyResult<Option<Found>> {
        let mut found = Found { shares: Vec::new(), rest: 0, count: 0, body: Vec::new() };
        let retries = 1..=self.retries.len();
        let order: Vec<usize> = if turn.retry_first { retries.chain([0]).collect() } else { [0].into_iter().chain(retries).collect() };
        for number in order {
            let source = number.checked_sub(1).map_or(&self.own, |at| &self.retries[at]);
            let count = source.queue_count;
            if number == 0 && let Some(queue_id) = self.queue_id {
                if found.count < self.count_max && !self.read_queue(place, number, source, queue_id, &mut found)? {
                    return Ok(None);
                }
                continue;
            }
            let start = if count > 0 { turn.start.rem_euclid(count) } else { 0 };
            for step in 0..count {
                if found.count >= self.count_max {
                    break;
                }
                let queue_id = if turn.highest_first { count - 1 - step } else { (start + step) % count };
                if !self.read_queue(place, number, source, queue_id, &mut found)? {
                    return Ok(None);
                }
            }
        }
        Ok((found.count > 0).then_some(found))
    }

    /// Add the messages of one queue; false: the reference implementation has to read it.
    fn read_queue(
        &self,
        place: &Place<'_, '_>,
        number: usize,
        source: &Source,
        queue_id: i64,
        found: &mut Found,
    ) -> PyResult<bool> {
        let py = place.offsets.py();
        let Some(known) = place.offsets.get_item(&source.key)? else { return Ok(false) };
        let Some(offset) = known.cast::<PyDict>()?.get_item(queue_id)? else { return Ok(false) };
        let offset: i64 = offset.extract()?;
        let store = place.appender.store.bind(py);
        let queues = store.getattr(intern!(py, "queues"))?;
        let Some(queue) = queues.cast::<PyDict>()?.get_item((&source.topic, queue_id))? else { return Ok(offset == 0) };
        let max_offset: i64 = queue.getattr(intern!(py, "readable_max"))?.extract()?;
        if offset == max_offset {
            return Ok(true);
        }
        // Messages of a retry topic go out under another topic, with their handle.
        if number != 0 || !place.appender.is_plain_queue(&queue) {
            return Ok(false);
        }
        let min_offset: i64 = queue.getattr(intern!(py, "min_offset"))?.extract()?;
        if offset < min_offset.max(0) || offset > max_offset {
            return Ok(false);
        }
        let log = place.appender.log_object.bind(py);
        let log_end: i64 = log.getattr(intern!(py, "end"))?.extract()?;
        let count_max = self.count_max - found.count;
        let (tag_codes, filter, limits) = (self.tag_codes.as_ref(), None, place.limits);
        let reader = Reader { tag_codes, filter, limits, log, log_end, queue: &queue, max_offset, count_max };
        let Some(entries) = reader.entries(offset, reader.step(offset))? else { return Ok(false) };
        let is_hot = max_offset - offset <= NEAR_ENTRIES && limits.is_hot(&entries, log_end);
        if !is_hot && store.call_method1(intern!(py, "is_cold"), (&source.topic, queue_id, offset))?.is_truthy()? {
            return Ok(false);
        }
        let start = found.body.len();
        let Some((next_offset, count, _)) = reader.collect(offset, entries, &mut found.body)? else { return Ok(false) };
        let Some(offsets) = queue_offsets(&found.body[start..]).filter(|offsets| count > 0 && offsets.len() as i64 == count) else {
            return Ok(false);
        };
        found.count += count;
        found.rest += (max_offset - next_offset).max(0);
        let size = found.body.len() - start;
        found.shares.push(Share { source: number, queue_id, offsets, next_offset, size });
        Ok(true)
    }

    /// The reply FOUND, as found_reply() of aerobee/broker/fastpath/pop.py writes it. None: it is too long for a frame.
    pub fn reply(&self, found: &Found, opaque: i64, pop_time: i64, revive_queue_id: i64) -> Option<Vec<u8>> {
        let mut reply = Vec::with_capacity(found.body.len() + 512);
        reply.extend_from_slice(&[0; 8]);
        let _ = write!(
            reply,
            "{{\"code\":0,\"extFields\":{{\"popTime\":\"{pop_time}\",\"invisibleTime\":\"{}\",\"reviveQid\":\"{revive_queue_id}\",\
             \"restNum\":\"{}\",\"startOffsetInfo\":\"",
            self.invisible_ms, found.rest,
        );
        let mut offsets = String::new();
        for (at, share) in found.shares.iter().enumerate() {
            let (separator, retry) = (if at == 0 { "" } else { ";" }, &self.source(share).retry);
            let _ = write!(reply, "{separator}{retry} {} {}", share.queue_id, share.start_offset());
            let _ = write!(offsets, "{separator}{retry} {} ", share.queue_id);
            for (number, offset) in share.offsets.iter().enumerate() {
                let _ = write!(offsets, "{}{offset}", if number == 0 { "" } else { "," });
            }
        }
        let _ = write!(
            reply,
            "\",\"msgOffsetInfo\":\"{offsets}\"}},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":{opaque},\"remark\":\"FOUND\",\
             \"serializeTypeCurrentRPC\":\"JSON\",\"version\":{REPLY_VERSION}}}"
        );
        let header_bytes = reply.len() - 8;
        let length = 4 + header_bytes + found.body.len();
        if length + 4 > FRAME_BYTES_MAX {
            return None;
        }
        reply[..4].copy_from_slice(&(length as u32).to_be_bytes());
        reply[4..8].copy_from_slice(&(header_bytes as u32).to_be_bytes());
        reply.extend_from_slice(&found.body);
        Some(reply)
    }
}

impl Share {
    pub fn start_offset(&self) -> i64 {
        self.offsets.first().copied().unwrap_or(-1)
    }
}

/// The queue offsets of records that stand back to back.
fn queue_offsets(body: &[u8]) -> Option<Vec<i64>> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < body.len() {
        let size = u32::from_be_bytes(*body[at..].first_chunk::<4>()?) as usize;
        found.push(i64::from_be_bytes(*body.get(at + QUEUE_OFFSET_AT..)?.first_chunk::<8>()?));
        at += size.max(1);
    }
    Some(found)
}
