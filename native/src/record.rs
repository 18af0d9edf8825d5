//! The layout of a record in the commit log (aerobee/store/log/record_layout.py), written and taken apart.

use crate::constants::{
    BODY_CRC_AT, BODY_SIZE_AT, BORN_HOST_V6, BORN_TIMESTAMP_AT, FLAG_AT, HEAD_BYTES, MAGIC_AT, MAGIC_V1,
    PHYSICAL_OFFSET_AT, QUEUE_ID_AT, QUEUE_OFFSET_AT, RECONSUME_TIMES_AT, STORE_HOST_V6, STORE_TIMESTAMP_AT,
    SYS_FLAG_AT,
};
use crate::outcome::{Outcome, Stop};

/// Fields of a record other than hosts, body, topic and properties.
const FIXED_BYTES: usize = 72 + 2;

/// One message to encode. Numbers were read, but may not fit their fields.
pub struct Message<'a> {
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub tag_code: i64,
    pub flag: i64,
    pub sys_flag: i64,
    pub born_timestamp: i128,
    pub reconsume_times: i64,
    /// Physical offset of the half message of a committed message.
    pub prepared_offset: i64,
}

/// Position of a record, and its fields shared with others.
pub struct Site<'a> {
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub store_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    /// Length byte and name.
    pub topic: &'a [u8],
}

/// The bytes of a record with such hosts and topic field.
pub fn record_bytes(born_host: &[u8], store_host: &[u8], topic: &[u8], body_bytes: usize, properties_bytes: usize) -> usize {
    FIXED_BYTES + born_host.len() + store_host.len() + topic.len() + body_bytes + properties_bytes
}

/// Append the record to `out`. A number that does not fit its field is for the handlers; nothing is appended then.
pub fn lay_out(out: &mut Vec<u8>, site: &Site<'_>, message: &Message<'_>) -> Outcome<()> {
    let size = record_bytes(site.born_host, site.store_host, site.topic, message.body.len(), message.properties.len());
    let sys_flag = message.sys_flag
        | if site.born_host.len() == 8 { 0 } else { BORN_HOST_V6 }
        | if site.store_host.len() == 8 { 0 } else { STORE_HOST_V6 };
    let word = |value: i64| i32::try_from(value).map_err(|_| Stop::Slow);
    let total = u32::try_from(size).map_err(|_| Stop::Slow)?;
    let (flag, sys_flag, reconsume_times) = (word(message.flag)?, word(sys_flag)?, word(message.reconsume_times)?);
    let born_timestamp = i64::try_from(message.born_timestamp).map_err(|_| Stop::Slow)?;
    out.reserve(size);
    let start = out.len();
    // The fixed fields of every record, in one piece.
    let mut head = [0; BORN_TIMESTAMP_AT + 8];
    head[..MAGIC_AT].copy_from_slice(&total.to_be_bytes());
    head[MAGIC_AT..BODY_CRC_AT].copy_from_slice(&MAGIC_V1.to_be_bytes());
    head[BODY_CRC_AT..QUEUE_ID_AT].copy_from_slice(&body_crc(message.body).to_be_bytes());
    head[QUEUE_ID_AT..FLAG_AT].copy_from_slice(&site.queue_id.to_be_bytes());
    head[FLAG_AT..QUEUE_OFFSET_AT].copy_from_slice(&flag.to_be_bytes());
    head[QUEUE_OFFSET_AT..PHYSICAL_OFFSET_AT].copy_from_slice(&site.queue_offset.to_be_bytes());
    head[PHYSICAL_OFFSET_AT..SYS_FLAG_AT].copy_from_slice(&site.physical_offset.to_be_bytes());
    head[SYS_FLAG_AT..BORN_TIMESTAMP_AT].copy_from_slice(&sys_flag.to_be_bytes());
    head[BORN_TIMESTAMP_AT..].copy_from_slice(&born_timestamp.to_be_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(site.born_host);
    out.extend_from_slice(&site.store_timestamp.to_be_bytes());
    out.extend_from_slice(site.store_host);
    let mut tail = [0; 16];
    tail[..4].copy_from_slice(&reconsume_times.to_be_bytes());
    tail[4..12].copy_from_slice(&message.prepared_offset.to_be_bytes());
    tail[12..].copy_from_slice(&(message.body.len() as u32).to_be_bytes());
    out.extend_from_slice(&tail);
    out.extend_from_slice(message.body);
    out.extend_from_slice(site.topic);
    out.extend_from_slice(&(message.properties.len() as u16).to_be_bytes());
    out.extend_from_slice(message.properties);
    debug_assert_eq!(out.len() - start, size);
    Ok(())
}

/// The CRC of a body as records have it.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

/// A record with two IPv4 hosts, taken apart.
pub struct Record<'a> {
    pub size: usize,
    pub crc: u32,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// None for an incomplete record, one with other hosts, or one with another physical offset.
    pub fn cut(bytes: &'a [u8], physical_offset: i64) -> Option<Self> {
        let word = |at: usize| Some(i32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(i64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let sys_flag = word(SYS_FLAG_AT)?;
        let body_end = HEAD_BYTES.checked_add(usize::try_from(word(BODY_SIZE_AT)?).ok()?)?;
        if usize::try_from(word(0)?).ok()? != bytes.len()
            || word(MAGIC_AT)? as u32 != MAGIC_V1
            || long(PHYSICAL_OFFSET_AT)? != physical_offset
            || i64::from(sys_flag) & (BORN_HOST_V6 | STORE_HOST_V6) != 0
            || body_end + 3 > bytes.len()
        {
            return None;
        }
        let properties_at = body_end + 3 + usize::from(bytes[body_end]);
        let size = bytes.get(properties_at - 2..properties_at)?;
        let properties = bytes.get(properties_at..)?;
        if properties.len() != usize::from(u16::from_be_bytes([size[0], size[1]])) {
            return None;
        }
        Some(Self {
            size: bytes.len(),
            queue_id: word(QUEUE_ID_AT)?,
            queue_offset: long(QUEUE_OFFSET_AT)?,
            store_host: &bytes[STORE_TIMESTAMP_AT + 8..RECONSUME_TIMES_AT],
            crc: word(BODY_CRC_AT)? as u32,
            flag: word(FLAG_AT)?,
            sys_flag,
            born_timestamp: long(BORN_TIMESTAMP_AT)?,
            born_host: &bytes[BORN_TIMESTAMP_AT + 8..STORE_TIMESTAMP_AT],
            store_timestamp: long(STORE_TIMESTAMP_AT)?,
            reconsume_times: word(RECONSUME_TIMES_AT)?,
            body: &bytes[HEAD_BYTES..body_end],
            topic: &bytes[body_end + 1..properties_at - 2],
            properties,
        })
    }
}
