//! An open call and its stream, and the parts of a connection that are about one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::grpc_message::MessageReader;
use crate::hpack::Field;
use crate::http2_call::Call;
use crate::http2_frame::{Http2Fault, PROTOCOL_ERROR, ReceiveWindow};

const LENGTH_DIGITS_MAX: usize = 4_300; // Python's int() takes no more

/// How a stream was closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    Reset,
    Ended,
}

/// An open call and its stream.
pub struct Stream {
    pub call: Py<Call>,
    /// The headers of a call that Python does not know yet: no event names it.
    pub unannounced: Option<Vec<Arc<Field>>>,
    pub window: ReceiveWindow,
    pub send_window: i64,
    pub length: Option<u64>, // content-length
    pub received_bytes: u64,
    pub reader: MessageReader,
    pub message_bytes_max: usize,
    pub encoding: Option<Py<PyString>>, // grpc-encoding
    pub may_idle: bool,
    pub is_half_closed: bool,
    pub is_responding: bool,
    pub is_finishing: bool,
    pub trailers: Vec<u8>,
    pub unsent: VecDeque<Vec<u8>>,
    pub first_sent_bytes: usize, // of the first one
    pub unsent_bytes: usize,
    pub blocked_since: Option<f64>,
}

impl Stream {
    /// The client sends no more, if it is so.
    pub fn half_close(&mut self, ends: bool) {
        self.is_half_closed = ends;
        self.call.get().half_closed.store(ends, Ordering::Relaxed);
    }
}

/// A header block that is not complete.
pub struct Block {
    pub stream_id: u32,
    pub flags: u8,
    pub depends_on: Option<u32>,
    pub data: Vec<u8>,
    pub continuation_count: usize,
}

/// A time of a call; the earliest is the first of a heap.
pub struct Due {
    pub at: f64,
    pub sequence: u64,
    pub stream_id: u32,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.total_cmp(&other.at).then(self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

pub fn check_dependency(stream_id: u32, depends_on: Option<u32>) -> Result<(), Http2Fault> {
    if depends_on == Some(stream_id) {
        return Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("stream {stream_id} depends on itself")));
    }
    Ok(())
}

/// The header content-length: digits, and the same in each.
pub fn content_length(fields: &[Arc<Field>]) -> Result<Option<u64>, Http2Fault> {
    let mut found: Option<&[u8]> = None;
    for field in fields.iter().filter(|field| field.name == b"content-length") {
        let digits = field.value.as_slice();
        let is_number = !digits.is_empty() && digits.len() <= LENGTH_DIGITS_MAX && digits.iter().all(u8::is_ascii_digit);
        let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
        let significant = digits.get(zeros..).unwrap_or_default();
        if !is_number || found.is_some_and(|found| found != significant) {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "a content-length is no number, or there are several"));
        }
        found = Some(significant);
    }
    // More than any request has, when it does not fit.
    Ok(found.map(|digits| {
        digits.iter().try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0'))).unwrap_or(u64::MAX)
    }))
}
