//! Decodes records of a pull reply as received messages. aerobee/client/base/received.py is the reference
//! implementation and defines which records are ordinary. This decoder takes the ordinary records at the front, and
//! stops at the first other one.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::constants::{
    BODY_SIZE_AT, BORN_HOST_V6, HEAD_BYTES, INNER_BATCH, MAGIC_AT, MAGIC_V1, NEED_UNWRAP, PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT, RECORD_BYTES_MIN, STORE_HOST_V6, SYS_FLAG_AT,
};

const HOSTS_V6: u32 = (BORN_HOST_V6 | STORE_HOST_V6) as u32;
const INNER_RECORD: u32 = (NEED_UNWRAP | INNER_BATCH) as u32;

/// Decode from the start of `data` the ordinary records of `queue`; return the messages and where it stopped.
/// `message` is the class ReceivedMessage.
#[pyfunction]
pub fn take_records<'py>(
    py: Python<'py>,
    message: &Bound<'py, PyAny>,
    data: &Bound<'py, PyBytes>,
    queue: &Bound<'py, PyAny>,
    topic: &Bound<'py, PyString>,
) -> PyResult<(Bound<'py, PyList>, usize)> {
    let bytes = data.as_bytes();
    let wanted = topic.to_str()?.as_bytes();
    let messages = PyList::empty(py);
    let mut at = 0;
    while let Some(record) = Record::ordinary(&bytes[at..], wanted) {
        let arguments = (
            topic,
            queue,
            record.queue_offset,
            PyBytes::new(py, record.body),
            PyBytes::new(py, record.properties),
            PyBytes::new(py, &bytes[at..at + HEAD_BYTES]),
            record.size,
            record.sys_flag,
        );
        messages.append(message.call1(arguments)?)?;
        at += record.size;
    }
    Ok((messages, at))
}

struct Record<'a> {
    size: usize,
    queue_offset: i64,
    sys_flag: i32,
    body: &'a [u8],
    properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record at the start of `bytes`, None when it is not one of topic `wanted` with two IPv4 hosts.
    fn ordinary(bytes: &'a [u8], wanted: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD_BYTES)?;
        let word = |at: usize| -> Option<u32> { Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?)) };
        let size = word(0)? as usize;
        let sys_flag = word(SYS_FLAG_AT)?;
        if word(MAGIC_AT)? != MAGIC_V1
            || sys_flag & HOSTS_V6 != 0
            || sys_flag & INNER_RECORD == INNER_RECORD
            || size < RECORD_BYTES_MIN
        {
            return None;
        }
        let record = bytes.get(..size)?;
        let body_size = usize::try_from(word(BODY_SIZE_AT)? as i32).ok()?;
        let (body, rest) = record[HEAD_BYTES..].split_at_checked(body_size)?;
        let (topic_size, rest) = rest.split_first()?;
        let (topic, rest) = rest.split_at_checked(usize::from(*topic_size))?;
        let (properties_size, properties) = rest.split_first_chunk::<2>()?;
        if topic != wanted || usize::from(u16::from_be_bytes(*properties_size)) != properties.len() {
            return None;
        }
        let queue_offset = i64::from_be_bytes(head[QUEUE_OFFSET_AT..PHYSICAL_OFFSET_AT].try_into().ok()?);
        Some(Self { size, queue_offset, sys_flag: sys_flag as i32, body, properties })
    }
}
