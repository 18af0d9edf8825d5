//! Results of a burst for the I/O layer (the protocols of aerobee/broker/fastpath/seam.py).
//!
//! The fields of the classes hold Python objects from their creation on. So each is a plain member, which Python reads
//! without a call; a getter that creates the object on each read would cost a call.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyTuple};

use crate::constants::ACK_LEVELS;
use crate::requests::Answers;

/// Result of a burst.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct BurstResult {
    pub replies: Py<PyBytes>,
    pub used: Py<PyInt>,
    pub is_slow: Py<PyBool>,
    pub deferred_replies: Py<PyBytes>,
    pub deferred_answers: Py<PyAny>, // a list, or the empty tuple
    pub leveled_replies: Py<PyAny>, // a list, or the empty tuple
    pub stored_count: Py<PyInt>,
    pub pulled: Py<PyAny>, // a list, or the empty tuple
    pub fault: Py<PyAny>,  // None: nothing failed
}

/// Effects of one pull, or of several successive pulls of one consumer; or a waiting pull.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct PullResult {
    pub authorization: Py<PyAny>,
    pub queue_id: Py<PyInt>,
    pub next_offset: Py<PyInt>,
    pub commit_offset: Py<PyAny>, // None: nothing is to be committed
    pub held: Py<PyAny>, // None: it has a reply
}

/// Results of one run of Sockets for Python (native_loop.py describes the fields).
#[cfg(target_os = "linux")]
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct SocketTurns {
    pub others: Py<PyList>,
    pub turn_count: Py<PyInt>,
    pub stored_count: Py<PyInt>,
    pub pulled: Py<PyList>,
    pub held: Py<PyList>,
    pub events: Py<PyList>,
    pub unsent: Py<PyList>,
    pub fault: Py<PyAny>,
}

/// A number as Python has it.
pub fn int<'py>(py: Python<'py>, value: impl IntoPyObject<'py, Target = PyInt, Output = Bound<'py, PyInt>, Error = std::convert::Infallible>) -> Py<PyInt> {
    match value.into_pyobject(py) {
        Ok(value) => value.unbind(),
        Err(never) => match never {},
    }
}

/// Replies to sends with an ack level that waits.
pub struct Leveled {
    /// Number of the level in ACK_LEVELS.
    pub level: usize,
    pub frames: Vec<u8>,
    /// Numbers of these replies, by request code.
    pub answers: Answers,
}

/// Data of a PullResult.
pub struct Pulled {
    pub authorization: Py<PyAny>,
    pub queue_id: i64,
    pub next_offset: i64,
    pub commit_offset: Option<i64>,
    pub held: Option<PendingFrame>,
    /// The queue's end: an offset up to it may be committed.
    pub max_offset: i64,
}

/// A pull that waits for the next message of its queue.
pub struct PendingFrame {
    pub frame: Vec<u8>,
    pub hold_ms: i64,
    pub code: i64,
}

impl Pulled {
    pub fn result(&self, py: Python<'_>) -> PyResult<Py<PullResult>> {
        let held = self.held.as_ref().map(|held| (PyBytes::new(py, &held.frame), held.hold_ms, held.code));
        let result = PullResult {
            authorization: self.authorization.clone_ref(py),
            queue_id: int(py, self.queue_id),
            next_offset: int(py, self.next_offset),
            commit_offset: self.commit_offset.into_pyobject(py)?.unbind(),
            held: held.into_pyobject(py)?.unbind(),
        };
        Py::new(py, result)
    }

    /// Merge the next pull of the same connection into this result, if recording both together has the same effect as
    /// recording them one after the other: neither waits, and the next offset to commit is not lower and is within the
    /// queue.
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
            self.max_offset = next.max_offset;
        }
        is_next
    }
}

/// The same, or the empty tuple, which costs no object: most bursts are of sends.
pub fn pulled_if_any(py: Python<'_>, results: &[Pulled]) -> PyResult<Py<PyAny>> {
    Ok(if results.is_empty() { PyTuple::empty(py).into_any().unbind() } else { pulled(py, results)?.into_any().unbind() })
}

/// Answers as a list of (code, how many), or the empty tuple, which costs no object: mostly there are none.
pub fn answers(py: Python<'_>, answers: &mut Answers) -> PyResult<Py<PyAny>> {
    Ok(if answers.is_empty() {
        PyTuple::empty(py).into_any().unbind()
    } else {
        PyList::new(py, answers.take())?.into_any().unbind()
    })
}

/// Replies that wait for an ack level as a list of (level, frames, answers), or the empty tuple; none is left.
pub fn leveled(py: Python<'_>, leveled: &mut Vec<Leveled>) -> PyResult<Py<PyAny>> {
    if leveled.is_empty() {
        return Ok(PyTuple::empty(py).into_any().unbind());
    }
    let list = PyList::empty(py);
    leveled.sort_by_key(|each| ACK_LEVELS[each.level]);
    for mut each in leveled.drain(..) {
        list.append((ACK_LEVELS[each.level], PyBytes::new(py, &each.frames), answers(py, &mut each.answers)?))?;
    }
    Ok(list.into_any().unbind())
}

/// Results of pulls as a list.
pub fn pulled<'py>(py: Python<'py>, results: &[Pulled]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for result in results {
        list.append(result.result(py)?)?;
    }
    Ok(list)
}

/// Result of a run of due messages.
#[pyclass(frozen, get_all, module = "aerobee_native")]
pub struct DeliveryResult {
    pub delivered_count: usize,
    pub appended: Py<PyList>,
    pub fault: Option<Py<PyAny>>,
}
