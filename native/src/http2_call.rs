//! What Python sees of one gRPC call: the public fields of aerobee/grpc/call.py's OpenCall.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

#[pyclass(frozen, module = "aerobee_native")]
pub struct Call {
    #[pyo3(get)]
    pub stream_id: u32,
    #[pyo3(get)]
    pub path: Py<PyString>,
    pub metadata: PyOnceLock<Py<PyDict>>, // set when the call is announced
    #[pyo3(get)]
    pub started: f64,
    #[pyo3(get)]
    pub deadline: Option<f64>,
    pub half_closed: AtomicBool,
    pub over: AtomicBool,
    pub finishing: AtomicBool,
}

#[pymethods]
impl Call {
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        self.metadata.get_or_init(py, || PyDict::new(py).unbind()).bind(py).clone()
    }

    #[getter]
    fn is_half_closed(&self) -> bool {
        self.half_closed.load(Ordering::Relaxed)
    }

    #[getter]
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    #[getter]
    fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Relaxed)
    }

    fn remaining_s(&self, now: f64) -> Option<f64> {
        self.deadline.map(|deadline| deadline - now)
    }
}
