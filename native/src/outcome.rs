//! Outcome of a frame, and the Python errors that leave it to the handlers.

use pyo3::exceptions::{PyAttributeError, PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

/// Reason why a frame was not served here.
pub enum Stop {
    /// The frame is left to the handlers, which report every error. Nothing was written.
    Slow,
    /// A failure after which no handler may serve the frame, because bytes may have been written already.
    Fault(PyErr),
}

pub type Outcome<T> = Result<T, Stop>;

/// Errors of the store, in addition to those that the Python backend treats as "not eligible" (UNREADABLE).
pub struct Errors {
    store_error: Py<PyAny>,
}

impl Errors {
    pub fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self { store_error: py.import("aerobee.errors")?.getattr("StoreError")?.unbind() })
    }

    /// An error of the store, or one that the Python backend treats as "not eligible", leaves the frame to the
    /// handlers. For calls before the first byte is written alone.
    pub fn check<T>(&self, py: Python<'_>, result: PyResult<T>) -> Outcome<T> {
        result.map_err(|error| {
            let is_expected = error.matches(py, self.store_error.bind(py)).unwrap_or(false)
                || error.is_instance_of::<PyValueError>(py)
                || error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyKeyError>(py)
                || error.is_instance_of::<PyAttributeError>(py)
                || error.is_instance_of::<PyOverflowError>(py);
            if is_expected { Stop::Slow } else { Stop::Fault(error) }
        })
    }
}

/// Log the failure of a callback after a write. Written bytes stay: `what` is notified too late or not at all,
/// which is all that may follow from it. Exceptions that are no program errors, such as an interrupt, pass through.
pub fn note_failed_callback(py: Python<'_>, error: PyErr, what: &str) -> PyResult<()> {
    if !error.is_instance_of::<pyo3::exceptions::PyException>(py) {
        return Err(error);
    }
    let logger = py.import("logging")?.call_method1(intern!(py, "getLogger"), ("aerobee.broker.fastpath",))?;
    let keywords = pyo3::types::PyDict::new(py);
    keywords.set_item(intern!(py, "exc_info"), error.into_value(py))?;
    logger.call_method(intern!(py, "error"), ("%s failed after a message was stored", what), Some(&keywords))?;
    Ok(())
}
