//! SETTINGS and windows of HTTP/2: what this side announces, and which values of the peer are allowed. Source: RFC 9113.

use crate::http2_frame::{
    self as frames, ACK, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, Frame, Http2Fault, PROTOCOL_ERROR, SETTINGS, WINDOW_BYTES_MAX,
};
use crate::http2_limits::Limits;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;
pub const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

pub fn write_settings(out: &mut Vec<u8>, limits: &Limits) {
    let settings = [
        (HEADER_TABLE_SIZE, limits.header_table_bytes_max as u32),
        (ENABLE_PUSH, 0),
        (INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
        (MAX_FRAME_SIZE, limits.frame_bytes_max),
        (ENABLE_CONNECT_PROTOCOL, 0),
        (MAX_CONCURRENT_STREAMS, limits.concurrent_streams_max),
        (MAX_HEADER_LIST_SIZE, limits.header_list_bytes_max as u32),
    ];
    let mut payload = Vec::with_capacity(6 * settings.len());
    for (name, value) in settings {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frames::write(out, SETTINGS, 0, 0, &[&payload]);
}

/// The settings of a frame; of one that comes twice the last value, at its first place.
pub fn settings_of(frame: &Frame<'_>) -> Result<Vec<(u16, u32)>, Http2Fault> {
    if frame.flags & ACK != 0 && !frame.payload.is_empty() {
        return Err(Http2Fault::protocol(PROTOCOL_ERROR, "an acknowledgement of SETTINGS has settings"));
    }
    let (entries, rest) = frame.payload.as_chunks::<6>();
    if !rest.is_empty() {
        return Err(Http2Fault::protocol(FRAME_SIZE_ERROR, "SETTINGS end in the middle of one"));
    }
    let mut found: Vec<(u16, u32)> = Vec::with_capacity(entries.len().min(8));
    for entry in entries {
        let name = u16::from_be_bytes([entry[0], entry[1]]);
        let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
        // Only known ones matter: an unknown one is neither checked nor kept.
        if !matches!(name, ENABLE_PUSH | INITIAL_WINDOW_SIZE | MAX_FRAME_SIZE | ENABLE_CONNECT_PROTOCOL) {
            continue;
        }
        match found.iter_mut().find(|(known, _)| *known == name) {
            Some((_, last)) => *last = value,
            None => found.push((name, value)),
        }
    }
    Ok(found)
}

pub fn check_setting(name: u16, value: u32) -> Result<(), Http2Fault> {
    let (is_valid, code) = match name {
        INITIAL_WINDOW_SIZE => (i64::from(value) <= WINDOW_BYTES_MAX, FLOW_CONTROL_ERROR),
        MAX_FRAME_SIZE => ((16_384..=16_777_215).contains(&value), PROTOCOL_ERROR),
        ENABLE_PUSH | ENABLE_CONNECT_PROTOCOL => (value <= 1, PROTOCOL_ERROR),
        _ => (true, PROTOCOL_ERROR),
    };
    if is_valid { Ok(()) } else { Err(Http2Fault::protocol(code, format!("setting {name} has the value {value}"))) }
}

pub fn increment_of(frame: &Frame<'_>) -> Result<u32, Http2Fault> {
    let increment = u32::from_be_bytes(*frame.exactly::<4>()?);
    if increment == 0 || i64::from(increment) > WINDOW_BYTES_MAX {
        return Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("a window is updated by {increment}")));
    }
    Ok(increment)
}

pub fn opened(window: i64, increment: i64) -> Result<i64, Http2Fault> {
    let opened = window + increment;
    if opened > WINDOW_BYTES_MAX {
        return Err(Http2Fault::protocol(FLOW_CONTROL_ERROR, "a window has more than 2^31 - 1 bytes"));
    }
    Ok(opened)
}
