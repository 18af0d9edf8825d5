//! What a burst hands to its shell (aerobee/broker/fastpath/seam.py has the same as protocols).

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::appender::TopicTotal;
use crate::shared::Shared;

/// What became of a burst.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct BurstResult {
    pub replies: Py<PyBytes>,
    pub used: usize,
    pub is_slow: bool,
    pub held_replies: Py<PyBytes>,
    pub appended: Py<PyList>,
    pub pulled: Py<PyList>,
    pub fault: Option<Py<PyAny>>,
}

/// What was stored of one topic.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct Appended {
    pub topic: Py<PyString>,
    pub message_count: u64,
    pub byte_count: u64,
    pub request_count: u64,
}

impl Appended {
    pub fn of(shared: &Shared, py: Python<'_>, total: &TopicTotal) -> Self {
        Self {
            topic: shared.appender.topics.list[total.topic].py_name.clone_ref(py),
            message_count: total.message_count,
            byte_count: total.byte_count,
            request_count: total.request_count,
        }
    }
}

/// What one pull has found, or that it waits.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct PullResult {
    pub authorization: Py<PyAny>,
    pub queue_id: i64,
    pub next_offset: i64,
    pub commit_offset: Option<i64>,
    pub message_count: i64,
    pub byte_count: usize,
    pub held: Option<Py<HeldFrame>>,
}

/// A pull that waits for the next message of its queue.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct HeldFrame {
    pub frame: Py<PyBytes>,
    pub hold_ms: i64,
}

/// What a run of due messages became.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct DeliveryResult {
    pub delivered_count: usize,
    pub appended: Py<PyList>,
    pub fault: Option<Py<PyAny>>,
}
