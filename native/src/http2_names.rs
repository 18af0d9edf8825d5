//! What the HTTP/2 core needs of Python: the classes of its events, and functions for rare texts.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice, PyString};

use crate::grpc_message::{Cut, MessageFault};

pub const ACCEPTED_ENCODINGS: &str = "identity,gzip,deflate";

// Statuses of gRPC.
pub const OK: i64 = 0;
pub const UNIMPLEMENTED: i64 = 12;
pub const INTERNAL: i64 = 13;
pub const RESOURCE_EXHAUSTED: i64 = 8;
pub const DEADLINE_EXCEEDED: i64 = 4;

/// What is wrong with a request, or an error of Python.
pub enum Refused {
    Message(MessageFault),
    Status(i64, String),
    Python(PyErr),
}

impl From<MessageFault> for Refused {
    fn from(fault: MessageFault) -> Self {
        Self::Message(fault)
    }
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

/// Classes and functions of Python that events and texts need.
pub struct Names {
    pub call_started: Py<PyAny>,
    pub request_message: Py<PyAny>,
    pub request_ended: Py<PyAny>,
    pub call_ended: Py<PyAny>,
    pub call_answered: Py<PyAny>,
    pub writable: Py<PyAny>,
    pub parse_timeout: Py<PyAny>,
    pub inflate: Py<PyAny>,
    pub call_error: Py<PyAny>,
}

impl Names {
    pub fn import(py: Python<'_>) -> PyResult<Self> {
        let call = py.import("aerobee.grpc.call")?;
        let reader = py.import("aerobee.grpc.message_reader")?;
        let event = |name: &str| call.getattr(name).map(Bound::unbind);
        Ok(Self {
            call_started: event("CallStarted")?,
            request_message: event("RequestMessage")?,
            request_ended: event("RequestEnded")?,
            call_ended: event("CallEnded")?,
            call_answered: event("CallAnswered")?,
            writable: event("Writable")?,
            parse_timeout: py.import("aerobee.grpc.timeout")?.getattr("parse_timeout")?.unbind(),
            inflate: reader.getattr("inflate")?.unbind(),
            call_error: py.import("aerobee.grpc.status")?.getattr("CallError")?.unbind(),
        })
    }
}

/// A number as Python's format "g" writes it.
pub fn general(py: Python<'_>, number: f64) -> PyResult<String> {
    number.into_pyobject(py)?.call_method1("__format__", ("g",))?.extract()
}

/// One request message, inflated.
pub fn message_of(
    py: Python<'_>,
    cut: Cut<'_>,
    inflate: &Py<PyAny>,
    encoding: Option<&Py<PyString>>,
    bytes_max: usize,
    call_error: &Py<PyAny>,
) -> Result<Py<PyBytes>, Refused> {
    let data = PyBytes::new(py, cut.data);
    let Some(encoding) = encoding.filter(|_| cut.is_compressed) else { return Ok(data.unbind()) };
    let inflated = inflate.call1(py, (data, encoding, bytes_max)).and_then(|found| Ok(found.extract::<Py<PyBytes>>(py)?));
    inflated.map_err(|error: PyErr| {
        if !error.value(py).is_instance(call_error.bind(py)).unwrap_or(false) {
            return Refused::Python(error);
        }
        let value = error.value(py);
        let status = value.getattr("status").and_then(|status| status.extract());
        let text = value.getattr("message").and_then(|text| text.extract());
        match (status, text) {
            (Ok(status), Ok(text)) => Refused::Status(status, text),
            (Err(error), _) | (_, Err(error)) => Refused::Python(error),
        }
    })
}

/// The status and text of a call whose bytes are no messages.
pub fn status_of(py: Python<'_>, fault: MessageFault, encoding: Option<&Py<PyString>>, bytes_max: usize) -> PyResult<(i64, String)> {
    Ok(match fault {
        MessageFault::Flag(flag) => (INTERNAL, format!("the compressed flag of a message is {flag}, not 0 or 1")),
        MessageFault::TooLarge(length) => {
            (RESOURCE_EXHAUSTED, format!("a request message has {length} bytes, at most {bytes_max} are allowed"))
        }
        MessageFault::Encoding => {
            let name = match encoding {
                Some(name) => name.bind(py).get_item(PySlice::new(py, 0, 32, 1))?,
                None => PyString::new(py, "identity").into_any(),
            };
            (UNIMPLEMENTED, format!("grpc-encoding {} is not supported: {ACCEPTED_ENCODINGS} are", name.repr()?.to_str()?))
        }
    })
}
