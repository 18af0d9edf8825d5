//! What a burst hands to its shell (aerobee/broker/fastpath/seam.py has the same as protocols).

//!
//! What comes with each burst is a plain tuple, in the order of the fields: the shell unpacks it at once, which costs a third
//! of an object whose fields are asked for.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::appender::{Appender, TopicTotal};

/// What became of a burst.
pub struct BurstResult<'py> {
    pub replies: Bound<'py, PyBytes>,
    pub used: usize,
    pub is_slow: bool,
    pub held_replies: Bound<'py, PyBytes>,
    pub appended: Bound<'py, PyList>,
    pub pulled: Bound<'py, PyList>,
    pub fault: Option<Py<PyAny>>,
}

impl<'py> BurstResult<'py> {
    pub fn pack(self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let Self { replies, used, is_slow, held_replies, appended, pulled, fault } = self;
        (replies, used, is_slow, held_replies, appended, pulled, fault).into_pyobject(py)
    }
}

/// What was stored of one topic.
pub fn appended<'py>(appender: &Appender, py: Python<'py>, total: &TopicTotal) -> PyResult<Bound<'py, PyTuple>> {
    let topic = &appender.topics.list[total.topic].py_name;
    (topic, total.message_count, total.byte_count, total.request_count).into_pyobject(py)
}

/// What one pull has found, or several of one consumer after another; or that one waits.
pub struct PullResult {
    pub authorization: Py<PyAny>,
    pub queue_id: i64,
    pub next_offset: i64,
    pub commit_offset: Option<i64>,
    pub message_count: i64,
    pub byte_count: usize,
    pub held: Option<HeldFrame>,
    pub pull_count: u64,
    /// The queue's end: an offset up to it may be committed.
    pub max_offset: i64,
}

/// A pull that waits for the next message of its queue.
pub struct HeldFrame {
    pub frame: Vec<u8>,
    pub hold_ms: i64,
}

impl PullResult {
    pub fn pack<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let held = self.held.as_ref().map(|held| (PyBytes::new(py, &held.frame), held.hold_ms));
        let (message_count, byte_count, pull_count) = (self.message_count, self.byte_count, self.pull_count);
        let (queue_id, next_offset, commit_offset) = (self.queue_id, self.next_offset, self.commit_offset);
        (&self.authorization, queue_id, next_offset, commit_offset, message_count, byte_count, pull_count, held)
            .into_pyobject(py)
    }

    /// Take in the next pull of the same connection, when noting both together leaves what noting one after the other does:
    /// neither waits, and its offset to be committed does not go back and lies in the queue.
    pub fn take_in(&mut self, next: &Self) -> bool {
        let goes_on = match (self.commit_offset, next.commit_offset) {
            (Some(before), Some(commit)) => (before..=next.max_offset).contains(&commit) && before >= 0,
            (None, None) => true,
            _ => false,
        };
        let is_next = goes_on
            && self.queue_id == next.queue_id
            && self.authorization.is(&next.authorization)
            && self.held.is_none()
            && next.held.is_none();
        if is_next {
            (self.next_offset, self.commit_offset) = (next.next_offset, next.commit_offset);
            self.message_count += next.message_count;
            self.byte_count += next.byte_count;
            self.pull_count += next.pull_count;
            self.max_offset = next.max_offset;
        }
        is_next
    }
}

/// Results of pulls as a list.
pub fn pulled<'py>(py: Python<'py>, results: &[PullResult]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for result in results {
        list.append(result.pack(py)?)?;
    }
    Ok(list)
}

/// What a run of due messages became.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct DeliveryResult {
    pub delivered_count: usize,
    pub appended: Py<PyList>,
    pub fault: Option<Py<PyAny>>,
}
