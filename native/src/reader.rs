//! Reads of a consume queue's messages, equal to MessageReader._collect() (aerobee/store/read/reader.py).

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::constants::{FILLER_SIZE, QUEUE_ENTRY_BYTES, RESULT_BYTES_MAX, RUN_BYTES_MAX, SCATTERED_COUNT_MAX};
use crate::filter::{Filter, Unknown};
use crate::segment::Segment;
use crate::window::Window;

const ENTRY_BYTES: usize = QUEUE_ENTRY_BYTES as usize;

/// The store's limits of a read, read again when its config is another object.
pub struct Limits {
    pub config: Py<PyAny>,
    pub memory_bytes: i64,
    hot_read_bytes: i64,
    entry_budget: i64,
    pub hot_count: i64,
    hot_bytes: i64,
    pub cold_count: i64,
    cold_bytes: i64,
}

impl Limits {
    pub fn load(config: &Bound<'_, PyAny>) -> PyResult<Self> {
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

    /// Whether the first requested record is so hot that it is surely in memory.
    pub fn is_hot(&self, entry: &[u8], log_end: i64) -> bool {
        entry.first_chunk::<8>().is_some_and(|offset| log_end - i64::from_be_bytes(*offset) <= self.hot_read_bytes)
    }
}

/// One read of a queue, equal to MessageReader._collect().
pub struct Reader<'r, 'py> {
    pub tag_codes: Option<&'r HashSet<i64>>,
    pub filter: Option<&'r Filter>,
    pub limits: &'r Limits,
    pub log: &'r Bound<'py, PyAny>,
    pub log_end: i64,
    pub queue: &'r Bound<'py, PyAny>,
    pub max_offset: i64,
    pub count_max: i64,
}

impl Reader<'_, '_> {
    /// Number of entries read together: a read that is full after 32 must not copy 800 of them.
    pub fn step(&self, at: i64) -> i64 {
        let count = if self.tag_codes.is_none() { self.count_max } else { self.budget() };
        count.min(self.max_offset - at)
    }

    fn budget(&self) -> i64 {
        self.limits.entry_budget.max(self.count_max)
    }

    /// Up to `count` existing entries from `at` on, to the end of their file; None without any.
    pub fn entries(&self, at: i64, count: i64) -> PyResult<Option<Vec<u8>>> {
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
    pub fn collect(&self, offset: i64, mut entries: Vec<u8>, out: &mut Vec<u8>) -> PyResult<Option<(i64, i64, i64)>> {
        let limits = self.limits;
        let stop = self.max_offset.min(offset.saturating_add(self.budget()));
        let hot_from = self.log_end.saturating_sub(limits.memory_bytes);
        let sure_from = self.log_end.saturating_sub(limits.hot_read_bytes);
        let (hot, cold) = (self.count_max.min(limits.hot_count), self.count_max.min(limits.cold_count));
        let filter = self.filter;
        let mut segment: Option<Segment> = None;
        let body_at = out.len();
        let (mut at, mut count, mut last, mut run_end) = (offset, 0, -1, 0);
        loop {
            for entry in entries.chunks_exact(ENTRY_BYTES) {
                let (physical_offset, size, code) = cut_entry(entry);
                let is_filler = size == FILLER_SIZE && physical_offset == 0;
                if is_filler || self.tag_codes.is_some_and(|codes| !codes.contains(&code)) {
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
