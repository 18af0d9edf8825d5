//! What a burst hands to its shell (aerobee/broker/fastpath/seam.py has the same as protocols).

//!
//! What comes with each burst is a plain tuple, in the order of the fields: the shell unpacks it at once, which costs a third
//! of an object whose fields are asked for.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::appender::TopicTotal;
use crate::shared::Shared;

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
pub fn appended<'py>(shared: &Shared, py: Python<'py>, total: &TopicTotal) -> PyResult<Bound<'py, PyTuple>> {
    let topic = &shared.appender.topics.list[total.topic].py_name;
    (topic, total.message_count, total.byte_count, total.request_count).into_pyobject(py)
}

/// What one pull has found, or that it waits.
pub struct PullResult<'a> {
    pub authorization: &'a Py<PyAny>,
    pub queue_id: i64,
    pub next_offset: i64,
    pub commit_offset: Option<i64>,
    pub message_count: i64,
    pub byte_count: usize,
    pub held: Option<HeldFrame<'a>>,
}

/// A pull that waits for the next message of its queue.
pub struct HeldFrame<'a> {
    pub frame: &'a [u8],
    pub hold_ms: i64,
}

impl PullResult<'_> {
    pub fn pack<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let held = self.held.as_ref().map(|held| (PyBytes::new(py, held.frame), held.hold_ms));
        let (message_count, byte_count) = (self.message_count, self.byte_count);
        let (queue_id, next_offset, commit_offset) = (self.queue_id, self.next_offset, self.commit_offset);
        (self.authorization, queue_id, next_offset, commit_offset, message_count, byte_count, held).into_pyobject(py)
    }
}

/// What a run of due messages became.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct DeliveryResult {
    pub delivered_count: usize,
    pub appended: Py<PyList>,
    pub fault: Option<Py<PyAny>>,
}
