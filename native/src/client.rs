//! The client's hot functions: ids, frames of sends, and replies to them (client_reply.rs).
//!
//! aerobee/client/base/unique_id.py and send_header.py are the reference implementation;
//! tests/unit/client/session/test_client_codec.py holds both to it. Cases that are not ordinary are left to the
//! reference implementation, which covers every case and raises the errors.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::constants::{FRAME_BYTES_MAX, PROPERTIES_BYTES_MAX};
use crate::json_text::plain_until;
use crate::text::write_decimal;

const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";
const HEX_LOWER: &[u8; 16] = b"0123456789abcdef";

/// Counterpart of UniqueIds in Python, the reference, which gives the prefix and the calendar.
#[pyclass(module = "aerobee_native")]
pub struct UniqueIds {
    text: Vec<u8>,
    prefix_bytes: usize,
    counter: u16,
    now_ms: Option<i64>,
    month: (i64, i64),
    month_bounds_ms: Py<PyAny>,
}

#[pymethods]
impl UniqueIds {
    #[new]
    fn new(prefix: &str, counter: u64, month_bounds_ms: Py<PyAny>) -> Self {
        Self {
            text: [prefix.as_bytes(), &[b'0'; 12]].concat(),
            prefix_bytes: prefix.len(),
            counter: counter as u16,
            now_ms: None,
            month: (0, 0),
            month_bounds_ms,
        }
    }

    /// Return a new id. `now_ms` is the wall clock.
    fn next_id<'py>(&mut self, py: Python<'py>, now_ms: i64) -> PyResult<Bound<'py, PyString>> {
        self.advance(py, now_ms)?;
        self.current(py)
    }
}

impl UniqueIds {
    /// The newest id.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Make `text` the next id.
    pub fn advance(&mut self, py: Python<'_>, now_ms: i64) -> PyResult<()> {
        if self.now_ms != Some(now_ms) {
            if !(self.month.0..self.month.1).contains(&now_ms) {
                self.month = self.month_bounds_ms.bind(py).call1((now_ms,))?.extract()?;
            }
            let at = self.prefix_bytes;
            hex_upper(&mut self.text[at..at + 8], (now_ms - self.month.0) as u32);
            self.now_ms = Some(now_ms);
        }
        self.counter = self.counter.wrapping_add(1);
        let at = self.prefix_bytes + 8;
        hex_upper(&mut self.text[at..], u32::from(self.counter));
        Ok(())
    }

    fn current<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyString>> {
        // Hex digits behind a prefix that came as text.
        let text = std::str::from_utf8(&self.text).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(PyString::new(py, text))
    }
}

/// Fill `digits` with the lowest digits of `value`.
fn hex_upper(digits: &mut [u8], mut value: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = HEX_UPPER[(value & 15) as usize];
        value >>= 4;
    }
}

/// Twin of SendTemplate.
#[pyclass(module = "aerobee_native", frozen)]
pub struct SendTemplate {
    before_queue: Vec<u8>,
    after_properties: Vec<u8>,
    after_opaque: Vec<u8>,
    definition: Py<PyAny>,
}

#[pymethods]
impl SendTemplate {
    #[new]
    fn new(definition: Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            before_queue: definition.getattr("before_queue")?.extract()?,
            after_properties: definition.getattr("after_properties")?.extract()?,
            after_opaque: definition.getattr("after_opaque")?.extract()?,
            definition: definition.unbind(),
        })
    }

    /// Return the whole frame. Raises UsageError when the properties cannot be stored.
    #[allow(clippy::too_many_arguments)]
    fn frame<'py>(
        &self,
        py: Python<'py>,
        opaque: Bound<'py, PyAny>,
        queue_id: Bound<'py, PyAny>,
        sys_flag: Bound<'py, PyAny>,
        born_timestamp_ms: Bound<'py, PyAny>,
        flag: Bound<'py, PyAny>,
        properties: Bound<'py, PyAny>,
        body: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let made = (|| {
            let numbers = Numbers {
                opaque: opaque.extract().ok()?,
                queue_id: queue_id.extract().ok()?,
                sys_flag: sys_flag.extract().ok()?,
                born_timestamp_ms: born_timestamp_ms.extract().ok()?,
                flag: flag.extract().ok()?,
            };
            let text = properties.cast::<PyString>().ok()?.to_str().ok()?;
            self.ordinary(&numbers, text.as_bytes(), body.cast::<PyBytes>().ok()?.as_bytes())
        })();
        match made {
            Some(frame) => Ok(PyBytes::new(py, &frame).into_any()),
            None => self.definition.bind(py).call_method1(
                intern!(py, "frame"),
                (opaque, queue_id, sys_flag, born_timestamp_ms, flag, properties, body),
            ),
        }
    }

    /// Give `message` an id; return its frame and the id. Raises UsageError when the properties cannot be stored.
    fn begin<'py>(
        &self,
        py: Python<'py>,
        ids: Bound<'py, PyAny>,
        opaque: Bound<'py, PyAny>,
        queue_id: Bound<'py, PyAny>,
        now_ms: Bound<'py, PyAny>,
        message: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let (Ok(own), Some(parts)) = (ids.cast::<UniqueIds>(), Parts::of(&message)?) {
            let numbers = (|| {
                Some(Numbers {
                    opaque: opaque.extract().ok()?,
                    queue_id: queue_id.extract().ok()?,
                    sys_flag: 0,
                    born_timestamp_ms: now_ms.extract().ok()?,
                    flag: parts.flag,
                })
            })();
            if let Some(numbers) = numbers {
                let mut own = own.borrow_mut();
                own.advance(py, numbers.born_timestamp_ms)?;
                let mut properties = Vec::with_capacity(96);
                parts.write(&own.text, &mut properties);
                let unique_id = own.current(py)?;
                if let Some(frame) = self.ordinary(&numbers, &properties, parts.body.as_bytes()) {
                    return (PyBytes::new(py, &frame), unique_id).into_bound_py_any(py);
                }
                // Beyond a limit: the reference implementation says which.
                let text = String::from_utf8_lossy(&properties);
                let arguments = (opaque, queue_id, 0, now_ms, parts.flag, text, parts.body);
                let frame = self.definition.bind(py).call_method1(intern!(py, "frame"), arguments)?;
                return (frame, unique_id).into_bound_py_any(py);
            }
        }
        self.definition.bind(py).call_method1(intern!(py, "begin"), (ids, opaque, queue_id, now_ms, message))
    }
}

/// The parts of a message without user properties, which has nothing but a tag and keys.
struct Parts<'py> {
    flag: i64,
    waits: bool,
    tag: Option<Bound<'py, PyString>>,
    keys: Vec<Bound<'py, PyString>>,
    body: Bound<'py, PyBytes>,
}

impl<'py> Parts<'py> {
    /// None for other messages and for text that is not Unicode: they are the reference implementation's.
    fn of(message: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        let py = message.py();
        let keys = message.getattr(intern!(py, "keys"))?;
        let tag = message.getattr(intern!(py, "tag"))?;
        let Ok(keys) = keys.cast_into::<PyTuple>() else { return Ok(None) };
        if message.getattr(intern!(py, "properties"))?.is_truthy()?
            || message.getattr(intern!(py, "delay_level"))?.is_truthy()?
            || !message.getattr(intern!(py, "deliver_at"))?.is_none()
            || !message.getattr(intern!(py, "deliver_after"))?.is_none()
            || !message.getattr(intern!(py, "ack"))?.is_none()
        {
            return Ok(None);
        }
        let body = message.getattr(intern!(py, "body"))?;
        let waits = message.getattr(intern!(py, "wait_store_ok"))?.is_truthy()?;
        let flag = message.getattr(intern!(py, "flag"))?.extract();
        let priority = message.getattr(intern!(py, "priority"))?.extract::<i64>();
        Ok((|| {
            if priority.ok()? >= 0 {
                return None;
            }
            let mut texts = Vec::new();
            for key in keys.iter() {
                let key = key.cast_into::<PyString>().ok()?;
                key.to_str().ok()?;
                texts.push(key);
            }
            let tag = if tag.is_none() { None } else { Some(tag.cast_into::<PyString>().ok()?) };
            if let Some(tag) = &tag {
                tag.to_str().ok()?;
            }
            Some(Self { flag: flag.ok()?, waits, tag, keys: texts, body: body.cast_into::<PyBytes>().ok()? })
        })())
    }

    /// Append the property text, in the order in which RocketMQ's client writes it.
    fn write(&self, unique_id: &[u8], out: &mut Vec<u8>) {
        let text = |text: &Bound<'py, PyString>, out: &mut Vec<u8>| {
            out.extend_from_slice(text.to_str().unwrap_or_default().as_bytes());
        };
        for (number, key) in self.keys.iter().enumerate() {
            out.extend_from_slice(if number == 0 { b"KEYS\x01" } else { b" " });
            text(key, out);
        }
        if !self.keys.is_empty() {
            out.push(2);
        }
        out.extend_from_slice(b"UNIQ_KEY\x01");
        out.extend_from_slice(unique_id);
        out.extend_from_slice(if self.waits { b"\x02WAIT\x01true\x02" } else { b"\x02WAIT\x01false\x02" });
        if let Some(tag) = &self.tag {
            out.extend_from_slice(b"TAGS\x01");
            text(tag, out);
            out.push(2);
        }
    }
}

struct Numbers {
    opaque: i64,
    queue_id: i64,
    sys_flag: i64,
    born_timestamp_ms: i64,
    flag: i64,
}

impl SendTemplate {
    /// The frame, None when it passes a limit.
    fn ordinary(&self, numbers: &Numbers, properties: &[u8], body: &[u8]) -> Option<Vec<u8>> {
        if properties.len() > PROPERTIES_BYTES_MAX || body.len() > FRAME_BYTES_MAX {
            return None;
        }
        let fixed = self.before_queue.len() + self.after_properties.len() + self.after_opaque.len();
        let mut out = Vec::with_capacity(8 + fixed + properties.len() * 6 / 4 + 160 + body.len());
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&self.before_queue);
        write_decimal(&mut out, numbers.queue_id);
        out.extend_from_slice(b"\",\"f\":\"");
        write_decimal(&mut out, numbers.sys_flag);
        out.extend_from_slice(b"\",\"g\":\"");
        write_decimal(&mut out, numbers.born_timestamp_ms);
        out.extend_from_slice(b"\",\"h\":\"");
        write_decimal(&mut out, numbers.flag);
        out.extend_from_slice(b"\",\"i\":");
        push_json_text(&mut out, properties);
        out.extend_from_slice(&self.after_properties);
        write_decimal(&mut out, numbers.opaque);
        out.extend_from_slice(&self.after_opaque);
        let header_size = out.len() - 8;
        if header_size + body.len() > FRAME_BYTES_MAX - 8 {
            return None;
        }
        out.extend_from_slice(body);
        out[..4].copy_from_slice(&(4 + (header_size + body.len()) as u32).to_be_bytes());
        out[4..8].copy_from_slice(&(header_size as u32).to_be_bytes());
        Some(out)
    }
}

/// A JSON string as orjson writes it: UTF-8, with escapes for quotes, backslashes and control characters alone.
fn push_json_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut start = 0;
    loop {
        let at = plain_until(text, start);
        out.extend_from_slice(&text[start..at]);
        let Some(byte) = text.get(at) else { break };
        start = at + 1;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            8 => out.extend_from_slice(b"\\b"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'\n' => out.extend_from_slice(b"\\n"),
            12 => out.extend_from_slice(b"\\f"),
            b'\r' => out.extend_from_slice(b"\\r"),
            _ => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX_LOWER[usize::from(byte >> 4)]);
                out.push(HEX_LOWER[usize::from(byte & 15)]);
            }
        }
    }
    out.push(b'"');
}
