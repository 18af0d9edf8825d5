//! Header blocks of requests, decoded, and those of responses, encoded without state. Source: RFC 7541.
//!
//! The decoder keeps HPACK's dynamic table; aerobee/grpc/header_encoder.py says what the encoder writes and why. After an
//! error a decoder is not used again: its table is no longer the peer's.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, OnceLock};

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::huffman;

const ENTRY_BYTES: usize = 32; // that an entry counts besides its texts
const INTEGER_BYTES_MAX: usize = 5; // behind the first byte
const TABLE_BYTES_AT_FIRST: usize = 4_096;

/// One header. `text` is its value for Python, made at its first use: fields of the table come again and again.
pub struct Field {
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    pub has_allowed_characters: bool, // RFC 9113, 8.2.1
    pub text: OnceLock<Py<PyString>>,
}

impl Field {
    fn new(name: Vec<u8>, value: Vec<u8>) -> Arc<Self> {
        let has_allowed_characters = is_name(&name) && is_value(&value);
        Arc::new(Self { name, value, has_allowed_characters, text: OnceLock::new() })
    }

    fn size(&self) -> usize {
        ENTRY_BYTES + self.name.len() + self.value.len()
    }
}

fn is_name(name: &[u8]) -> bool {
    let rest = name.strip_prefix(b":").unwrap_or(name);
    !rest.is_empty() && rest.iter().all(|&byte| byte.is_ascii_graphic() && byte != b':' && !byte.is_ascii_uppercase())
}

fn is_value(value: &[u8]) -> bool {
    !value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'))
}

/// Why a block was refused.
#[derive(PartialEq, Eq, Debug)]
pub enum HpackError {
    Malformed,
    TooLarge, // decoded
}

static STATIC_TABLE: LazyLock<Vec<Arc<Field>>> = LazyLock::new(|| {
    STATIC_FIELDS
        .iter()
        .map(|(name, value)| Field::new(name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect()
});

const STATIC_FIELDS: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"), (":scheme", "http"),
    (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""), ("accept-encoding", "gzip, deflate"), ("accept-language", ""),
    ("accept-ranges", ""), ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""),
    ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""),
    ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

/// Decodes the blocks of one connection.
pub struct HeaderDecoder {
    entries: VecDeque<Arc<Field>>, // the newest first
    entries_bytes: usize,
    table_bytes_max: usize,   // what the peer has chosen
    allowed_bytes_max: usize, // what it may choose
    list_bytes_max: usize,
}

impl HeaderDecoder {
    pub fn new(allowed_bytes_max: usize, list_bytes_max: usize) -> Self {
        let entries = VecDeque::new();
        Self { entries, entries_bytes: 0, table_bytes_max: TABLE_BYTES_AT_FIRST, allowed_bytes_max, list_bytes_max }
    }

    /// The headers of one block, in their order.
    pub fn decode(&mut self, block: &[u8], found: &mut Vec<Arc<Field>>) -> Result<(), HpackError> {
        found.clear();
        let mut rest = block;
        let mut list_bytes = 0;
        while let Some(&first) = rest.first() {
            let field = if first & 0x80 != 0 {
                let index = integer(&mut rest, 7)?;
                self.entry(index)?
            } else if first & 0x40 != 0 {
                let field = self.literal(&mut rest, 6)?;
                self.add(&field);
                field
            } else if first & 0x20 != 0 {
                if !found.is_empty() {
                    return Err(HpackError::Malformed);
                }
                let bytes_max = integer(&mut rest, 5)?;
                self.resize(usize::try_from(bytes_max).map_err(|_| HpackError::Malformed)?)?;
                continue;
            } else {
                self.literal(&mut rest, 4)?
            };
            list_bytes += field.size();
            if list_bytes > self.list_bytes_max {
                return Err(HpackError::TooLarge);
            }
            found.push(field);
        }
        // A table that the peer should have made smaller and has not.
        if self.table_bytes_max > self.allowed_bytes_max { Err(HpackError::Malformed) } else { Ok(()) }
    }

    fn entry(&self, index: u64) -> Result<Arc<Field>, HpackError> {
        let at = usize::try_from(index).ok().and_then(|index| index.checked_sub(1)).ok_or(HpackError::Malformed)?;
        let found = match STATIC_TABLE.get(at) {
            Some(field) => Some(field),
            None => self.entries.get(at - STATIC_FIELDS.len()),
        };
        found.cloned().ok_or(HpackError::Malformed)
    }

    fn literal(&self, rest: &mut &[u8], index_bits: u8) -> Result<Arc<Field>, HpackError> {
        let index = integer(rest, index_bits)?;
        let name = if index > 0 { self.entry(index)?.name.clone() } else { text(rest)? };
        Ok(Field::new(name, text(rest)?))
    }

    fn add(&mut self, field: &Arc<Field>) {
        if field.size() > self.table_bytes_max {
            self.entries.clear();
            self.entries_bytes = 0;
        } else {
            self.entries.push_front(Arc::clone(field));
            self.entries_bytes += field.size();
            self.shrink();
        }
    }

    fn resize(&mut self, table_bytes_max: usize) -> Result<(), HpackError> {
        if table_bytes_max > self.allowed_bytes_max {
            return Err(HpackError::Malformed);
        }
        self.table_bytes_max = table_bytes_max;
        self.shrink();
        Ok(())
    }

    fn shrink(&mut self) {
        while self.entries_bytes > self.table_bytes_max {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.entries_bytes -= oldest.size();
        }
    }
}

/// A number in the last `bits` bits of the first byte, and in further bytes when it is larger.
fn integer(rest: &mut &[u8], bits: u8) -> Result<u64, HpackError> {
    let (&first, mut more) = rest.split_first().ok_or(HpackError::Malformed)?;
    let most = (1u64 << bits) - 1;
    let mut number = u64::from(first) & most;
    if number == most {
        let mut shift = 0;
        loop {
            let (&next, behind) = more.split_first().ok_or(HpackError::Malformed)?;
            more = behind;
            number += u64::from(next & 0x7f) << shift;
            if next < 0x80 {
                break;
            }
            shift += 7;
            if shift >= 7 * INTEGER_BYTES_MAX {
                return Err(HpackError::Malformed);
            }
        }
    }
    *rest = more;
    Ok(number)
}

fn text(rest: &mut &[u8]) -> Result<Vec<u8>, HpackError> {
    let is_packed = rest.first().is_some_and(|first| first & 0x80 != 0);
    let length = usize::try_from(integer(rest, 7)?).map_err(|_| HpackError::Malformed)?;
    let (data, behind) = rest.split_at_checked(length).ok_or(HpackError::Malformed)?;
    *rest = behind;
    if !is_packed {
        return Ok(data.to_vec());
    }
    let mut found = Vec::with_capacity(data.len() * 8 / 5);
    if huffman::decode(data, &mut found) { Ok(found) } else { Err(HpackError::Malformed) }
}

// --- responses

/// What the first block begins with: the table's size is 0.
pub const NO_TABLE: u8 = 0x20;
const STATUS_NAME: usize = 8; // index of ":status"
const CONTENT_TYPE_NAME: usize = 31;

/// Append one response header.
pub fn encode(name: &str, value: &[u8], block: &mut Vec<u8>) {
    match name {
        ":status" if value == b"200" => return block.push(0x88),
        ":status" => push_integer(STATUS_NAME, 4, block),
        "content-type" => push_integer(CONTENT_TYPE_NAME, 4, block),
        _ => {
            block.push(0);
            push_text(name.as_bytes(), block);
        }
    }
    push_text(value, block);
}

fn push_text(data: &[u8], block: &mut Vec<u8>) {
    push_integer(data.len(), 7, block);
    block.extend_from_slice(data);
}

fn push_integer(number: usize, bits: u8, block: &mut Vec<u8>) {
    let most = (1usize << bits) - 1;
    if number < most {
        return block.push(number as u8);
    }
    block.push(most as u8);
    let mut rest = number - most;
    while rest >= 128 {
        block.push((rest % 128 + 128) as u8);
        rest /= 128;
    }
    block.push(rest as u8);
}
