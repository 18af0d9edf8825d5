//! The binary header (serialize type ROCKETMQ): read as aerobee/remoting/binary_header.py reads it, and written.
//!
//!     int16 code | uint8 language | int16 version | int32 opaque | int32 flag
//!     | int32 remark_length, remark | int32 ext_length, entries
//!     entry = int16 name_length, name | int32 value_length, value

use crate::constants::REPLY_VERSION;
use crate::field::{FieldSink, Name, Value};

const FIXED_BYTES: usize = 17;
const LANGUAGE: u8 = 3; // PYTHON, as JSON replies say
pub const REPLY_FLAG: u32 = 1;

/// Contents of a header.
pub struct BinaryHeader {
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
    /// Number of known fields that are not UTF-8.
    pub mended: usize,
}

/// Values that are not UTF-8, with undecodable bytes replaced as Python's decoder does.
pub type Replaced = Vec<Vec<u8>>;

/// Read a header, or return None when it is malformed. Known fields that are not UTF-8 are taken from `replaced`: when
/// `mended` exceeds its length, the caller calls mend() and parses the header again.
pub fn parse<'a>(header: &'a [u8], replaced: &'a [Vec<u8>], fields: &mut impl FieldSink<'a>) -> Option<BinaryHeader> {
    let code = i16::from_be_bytes(header.get(..2)?.try_into().ok()?);
    let opaque = int32(header, 5)?;
    let flag = int32(header, 9)?;
    let remark_at = FIXED_BYTES;
    let remark_bytes = usize::try_from(int32(header, 13)?).ok()?;
    let mut at = remark_at.checked_add(remark_bytes)?;
    let ext_bytes = usize::try_from(int32(header, at)?).ok()?;
    at += 4;
    let end = at.checked_add(ext_bytes)?;
    let entries = header.get(..end)?;
    fields.clear_header();
    let mut mended = 0;
    while at < end {
        let name_bytes = i16::from_be_bytes(entries.get(at..at + 2)?.try_into().ok()?);
        at += 2;
        let name = piece(entries, &mut at, i32::from(name_bytes))?;
        let value_bytes = int32(entries, at)?;
        at += 4;
        let value = piece(entries, &mut at, value_bytes)?;
        if name.is_empty() || value.is_empty() {
            continue;
        }
        let known = Name::of(name);
        let raw = if known.is_none() || std::str::from_utf8(value).is_ok() {
            value
        } else {
            mended += 1;
            replaced.get(mended - 1).map_or(value, Vec::as_slice)
        };
        fields.take(name, known, Value::Text { raw, escaped: false });
    }
    Some(BinaryHeader { code: i32::from(code), flag, opaque, mended })
}

/// The known fields' values that are not UTF-8, as Python decodes them, in their order.
pub fn mend(header: &[u8], replaced: &mut Replaced) {
    replaced.clear();
    let Some(remark_bytes) = int32(header, 13).and_then(|size| usize::try_from(size).ok()) else { return };
    let Some(mut at) = FIXED_BYTES.checked_add(remark_bytes).and_then(|at| at.checked_add(4)) else { return };
    while at < header.len() {
        let Some(size) = header.get(at..at + 2) else { return };
        at += 2;
        let Some(name) = piece(header, &mut at, i32::from(i16::from_be_bytes([size[0], size[1]]))) else { return };
        let Some(size) = int32(header, at) else { return };
        at += 4;
        let Some(value) = piece(header, &mut at, size) else { return };
        if !value.is_empty() && Name::of(name).is_some() && std::str::from_utf8(value).is_err() {
            replaced.push(String::from_utf8_lossy(value).into_owned().into_bytes());
        }
    }
}

fn int32(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn piece<'a>(bytes: &'a [u8], at: &mut usize, size: i32) -> Option<&'a [u8]> {
    let start = *at;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    *at = end;
    bytes.get(start..end)
}

/// Append a whole reply: frame words, header, body. Entries with an empty value are left out.
pub fn write_reply(out: &mut Vec<u8>, opaque: i64, remark: &[u8], entries: &[(&[u8], &[u8])], body_bytes: usize) {
    let ext_bytes: usize =
        entries.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| 6 + name.len() + value.len()).sum();
    let header_bytes = FIXED_BYTES + remark.len() + 4 + ext_bytes;
    out.extend_from_slice(&((4 + header_bytes + body_bytes) as u32).to_be_bytes());
    out.extend_from_slice(&(1 << 24 | header_bytes as u32).to_be_bytes());
    out.extend_from_slice(&[0, 0, LANGUAGE]);
    out.extend_from_slice(&REPLY_VERSION.to_be_bytes());
    out.extend_from_slice(&(opaque as i32).to_be_bytes());
    out.extend_from_slice(&REPLY_FLAG.to_be_bytes());
    out.extend_from_slice(&(remark.len() as u32).to_be_bytes());
    out.extend_from_slice(remark);
    out.extend_from_slice(&(ext_bytes as u32).to_be_bytes());
    for (name, value) in entries.iter().filter(|(_, value)| !value.is_empty()) {
        out.extend_from_slice(&(name.len() as u16).to_be_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(&(value.len() as u32).to_be_bytes());
        out.extend_from_slice(value);
    }
}
