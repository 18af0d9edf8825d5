//! Decodes replies to sends, all of one read in one call. aerobee/client/session/send_replies.py is the reference
//! implementation: it defines which replies are ordinary. This decoder accepts fewer of them: those without blanks and
//! escapes, as brokers write them. The others take the general path, with the same result.

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyString, PyTuple};

use crate::json_text::plain_until;

const ANSWER_BYTES_MAX: usize = 64 * 1024;
const DIGITS_MAX: usize = 18;

/// A burst hook of a client's connections.
#[pyclass(module = "aerobee_native", frozen)]
pub struct SendReplies {
    result: Py<PyAny>,
    /// The class of the same slots that takes plain stores, aerobee/quick_init.py.
    open_result: Py<PyAny>,
    queue: Py<PyAny>,
    statuses: Py<PyDict>,
}

#[pymethods]
impl SendReplies {
    /// `result` and `queue`: the classes SendResult and MessageQueue, `open_result`: open_counterpart(SendResult); `statuses`:
    /// SendStatus by code.
    #[new]
    fn new(result: Py<PyAny>, open_result: Py<PyAny>, queue: Py<PyAny>, statuses: Py<PyDict>) -> Self {
        Self { result, open_result, queue, statuses }
    }

    /// Finish the sends whose ordinary replies are in `data` from `position` on; return the position of the first other
    /// reply.
    fn __call__(
        &self,
        connection: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        position: usize,
    ) -> PyResult<usize> {
        if let Ok(bytes) = data.cast::<PyBytes>() {
            self.take(connection, bytes.as_bytes(), position)
        } else if let Ok(bytes) = data.cast::<PyByteArray>() {
            self.take(connection, &bytes.to_vec(), position)
        } else {
            Err(PyTypeError::new_err("a read is bytes or a bytearray"))
        }
    }
}

impl SendReplies {
    fn take(&self, connection: &Bound<'_, PyAny>, data: &[u8], mut position: usize) -> PyResult<usize> {
        let py = connection.py();
        let pending = connection.getattr(intern!(py, "pending"))?.cast_into::<PyDict>()?;
        while let Some((header, stop)) = header_at(data, position) {
            let Some(answer) = Answer::read(header) else { break };
            let opaque = answer.opaque.into_pyobject(py)?;
            let Some(call) = pending.get_item(&opaque)? else { break };
            let Ok(call) = call.cast_into::<PyTuple>() else { break };
            let Ok(note) = call.get_item(4)?.cast_into::<PyTuple>() else { break };
            let Some(result) = self.result_of(py, &answer, &note)? else { break };
            pending.del_item(opaque)?;
            let future = call.get_item(0)?;
            if let Err(error) = future.call_method1(intern!(py, "set_result"), (result,)) {
                // Its caller has given up; anything else is a fault.
                if !future.call_method0(intern!(py, "done"))?.is_truthy()? {
                    return Err(error);
                }
            }
            position = stop;
        }
        Ok(position)
    }

    /// The SendResult, None for a code that no stored message has.
    fn result_of<'py>(
        &self,
        py: Python<'py>,
        answer: &Answer<'_>,
        note: &Bound<'py, PyTuple>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(status) = self.statuses.bind(py).get_item(answer.code)? else { return Ok(None) };
        let (mut queue, unique_id) = (note.get_item(0)?, note.get_item(1)?);
        if queue.getattr(intern!(py, "queue_id"))?.extract::<i64>()? != answer.queue_id {
            let topic = queue.getattr(intern!(py, "topic"))?;
            let broker_name = queue.getattr(intern!(py, "broker_name"))?;
            queue = self.queue.bind(py).call1((topic, broker_name, answer.queue_id))?;
        }
        let region = if answer.region == "DefaultRegion" {
            intern!(py, "DefaultRegion").clone()
        } else {
            PyString::new(py, answer.region)
        };
        let result = self.open_result.bind(py).call0()?;
        result.setattr(intern!(py, "status"), status)?;
        result.setattr(intern!(py, "message_id"), unique_id)?;
        result.setattr(intern!(py, "offset_message_id"), answer.message_id)?;
        result.setattr(intern!(py, "queue"), queue)?;
        result.setattr(intern!(py, "queue_offset"), answer.queue_offset)?;
        result.setattr(intern!(py, "transaction_id"), answer.transaction_id)?;
        result.setattr(intern!(py, "recall_handle"), answer.recall_handle)?;
        result.setattr(intern!(py, "region_id"), region)?;
        result.setattr(intern!(py, "trace_on"), answer.trace_on)?;
        result.setattr(intern!(py, "is_duplicate"), answer.is_duplicate)?;
        // An answer with a level is not one for this: Python reads it.
        result.setattr(intern!(py, "ack"), intern!(py, ""))?;
        result.setattr(intern!(py, "epoch"), -1)?;
        result.setattr(intern!(py, "log_offset"), -1)?;
        result.setattr(intern!(py, "__class__"), self.result.bind(py))?;
        Ok(Some(result))
    }
}

/// The header of the frame at `position` and where the frame ends; None unless it is whole and an answer without a body.
fn header_at(data: &[u8], position: usize) -> Option<(&[u8], usize)> {
    let word = |at: usize| -> Option<usize> {
        Some(u32::from_be_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?) as usize)
    };
    let (length, header_length) = (word(position)?, word(position.checked_add(4)?)?);
    if length > ANSWER_BYTES_MAX || length != header_length + 4 {
        return None;
    }
    let stop = position + 4 + length;
    Some((data.get(position + 8..stop)?, stop))
}

/// Contents of a reply.
struct Answer<'a> {
    code: i64,
    opaque: i64,
    queue_id: i64,
    queue_offset: i64,
    message_id: &'a str,
    transaction_id: &'a str,
    recall_handle: &'a str,
    region: &'a str,
    trace_on: bool,
    is_duplicate: bool,
}

impl<'a> Answer<'a> {
    /// None for everything that is not an ordinary answer in the form in which brokers write it.
    fn read(header: &'a [u8]) -> Option<Self> {
        let mut reader = Reader { text: std::str::from_utf8(header).ok()?, at: 0 };
        let (mut code, mut flag, mut opaque, mut version, mut fields) = (None, None, None, None, None);
        reader.expect(b'{')?;
        loop {
            let name = reader.name()?;
            match name {
                "extFields" => {
                    if fields.is_some() {
                        return None; // of equal names the last counts: left to who knows every case
                    }
                    fields = Some(Fields::read(&mut reader)?);
                }
                "code" => code = Some(reader.integer()?),
                "flag" => flag = Some(reader.integer()?),
                "opaque" => opaque = Some(reader.integer()?),
                "version" => version = Some(reader.integer()?),
                "language" | "remark" | "serializeTypeCurrentRPC" => {
                    reader.string()?;
                }
                _ => return None,
            }
            if !reader.goes_on()? {
                break;
            }
        }
        let fields = fields?;
        i32::try_from(version?).ok()?;
        (reader.at == header.len() && flag? == 1).then_some(())?;
        Some(Self {
            code: code?,
            opaque: opaque?,
            queue_id: decimal(fields.queue_id?)?,
            queue_offset: decimal(fields.queue_offset?)?,
            message_id: fields.message_id?,
            transaction_id: fields.transaction_id,
            recall_handle: fields.recall_handle,
            region: fields.region,
            trace_on: fields.trace_on != "false",
            is_duplicate: fields.is_duplicate,
        })
    }
}

#[derive(Default)]
struct Fields<'a> {
    queue_id: Option<&'a str>,
    queue_offset: Option<&'a str>,
    message_id: Option<&'a str>,
    transaction_id: &'a str,
    recall_handle: &'a str,
    region: &'a str,
    trace_on: &'a str,
    is_duplicate: bool,
}

impl<'a> Fields<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let mut fields = Self::default();
        reader.expect(b'{')?;
        if reader.peek()? == b'}' {
            return None;
        }
        loop {
            let name = reader.name()?;
            let value = reader.string()?;
            match name {
                "queueId" => fields.queue_id = Some(value),
                "queueOffset" => fields.queue_offset = Some(value),
                "msgId" => fields.message_id = Some(value),
                "transactionId" => fields.transaction_id = value,
                "recallHandle" => fields.recall_handle = value,
                "MSG_REGION" => fields.region = value,
                "TRACE_ON" => fields.trace_on = value,
                "duplicate" => fields.is_duplicate = true,
                "aerobeeAck" => return None, // a level that the send requested: rare, and has extra fields
                _ => {}
            }
            if !reader.goes_on()? {
                return Some(fields);
            }
        }
    }
}

/// A number of digits alone; more than fit are left to the reference implementation, and so are signs and blanks.
fn decimal(text: &str) -> Option<i64> {
    if text.is_empty() || text.len() > DIGITS_MAX || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// JSON without blanks and escapes.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    fn name(&mut self) -> Option<&'a str> {
        let name = self.string()?;
        self.expect(b':')?;
        Some(name)
    }

    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let start = self.at;
        let end = plain_until(self.text.as_bytes(), start);
        self.at = end;
        self.expect(b'"')?;
        self.text.get(start..end)
    }

    fn integer(&mut self) -> Option<i64> {
        let start = self.at;
        while self.peek()?.is_ascii_digit() {
            self.at += 1;
        }
        let digits = self.text.get(start..self.at)?;
        if digits.len() > 1 && digits.starts_with('0') {
            return None;
        }
        decimal(digits)
    }

    /// After a member: true when another one follows, false when the object ended.
    fn goes_on(&mut self) -> Option<bool> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b',' => Some(true),
            b'}' => Some(false),
            _ => None,
        }
    }
}
