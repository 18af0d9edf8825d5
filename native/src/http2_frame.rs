//! Frames of HTTP/2: cut from the peer's bytes and counted, and written. Source: RFC 9113; aerobee/grpc/frame_scanner.py.
//!
//!     uint24 length | uint8 type | uint8 flags | uint32 stream id | payload
//!
//! A frame's length is checked as soon as it is known, a header block is bounded over all its frames, and each kind of frame
//! that costs its sender nothing has a rate.

use crate::http2_limits::{Limits, TokenBucket};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const HEAD_BYTES: usize = 9;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const ALTSVC: u8 = 10; // RFC 7838

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const HAS_PRIORITY: u8 = 0x20;

pub const NO_ERROR: u32 = 0x0;
pub const PROTOCOL_ERROR: u32 = 0x1;
pub const FLOW_CONTROL_ERROR: u32 = 0x3;
pub const STREAM_CLOSED: u32 = 0x5;
pub const FRAME_SIZE_ERROR: u32 = 0x6;
pub const REFUSED_STREAM: u32 = 0x7;
pub const CANCEL: u32 = 0x8;
pub const ENHANCE_YOUR_CALM: u32 = 0xb;

pub const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;
pub const STREAM_ID_MASK: u32 = (1 << 31) - 1;
const PRIORITY_BYTES: usize = 5;
const GOAWAY_BYTES_MIN: usize = 8; // last stream and error code; a text may follow

/// The peer broke the protocol or a limit: the connection ends with GOAWAY and this error code.
#[derive(Debug)]
pub struct Http2Fault {
    pub code: u32,
    pub reason: String,
    pub is_in_goaway: bool, // whether GOAWAY has the reason
}

impl Http2Fault {
    /// A limit of ours: GOAWAY tells the peer which.
    pub fn limit(code: u32, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), is_in_goaway: true }
    }

    /// A violation of the protocol.
    pub fn protocol(code: u32, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), is_in_goaway: false }
    }
}

/// One whole frame of the peer.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    pub kind: u8,
    pub flags: u8,
    pub stream_id: u32,
    pub payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Refuse a frame on stream 0 that belongs to a call, or the other way round.
    pub fn check_stream(&self) -> Result<(), Http2Fault> {
        let is_right = match self.kind {
            DATA | HEADERS | PRIORITY | RST_STREAM | PUSH_PROMISE | CONTINUATION => self.stream_id != 0,
            SETTINGS | PING => self.stream_id == 0,
            _ => true,
        };
        if is_right {
            return Ok(());
        }
        Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("a frame of type {} has stream id {}", self.kind, self.stream_id)))
    }

    fn size_fault(&self) -> Http2Fault {
        Http2Fault::protocol(FRAME_SIZE_ERROR, format!("a frame of type {} has {} bytes", self.kind, self.payload.len()))
    }

    /// The payload, if it has the size that the type prescribes.
    pub fn exactly<const SIZE: usize>(&self) -> Result<&'a [u8; SIZE], Http2Fault> {
        self.payload.try_into().map_err(|_| self.size_fault())
    }

    /// The payload of DATA without padding.
    pub fn data(&self) -> Result<&'a [u8], Http2Fault> {
        let (padding, data) = self.padded()?;
        Self::unpadded(data, padding, self.payload.len())
    }

    /// The block of HEADERS, and the stream that a priority in it depends on.
    pub fn block(&self) -> Result<(&'a [u8], Option<u32>), Http2Fault> {
        let (padding, data) = self.padded()?;
        if self.flags & HAS_PRIORITY == 0 {
            return Ok((Self::unpadded(data, padding, data.len())?, None));
        }
        let depends_on = depends_on(data).ok_or_else(|| self.size_fault())?;
        // Padding may reach into the priority, whose bytes are read nevertheless.
        let end = Self::unpadded(data, padding, data.len())?.len();
        Ok((data.get(PRIORITY_BYTES..end).unwrap_or_default(), Some(depends_on)))
    }

    /// The stream that PRIORITY makes this one depend on.
    pub fn priority(&self) -> Result<u32, Http2Fault> {
        depends_on(self.payload).filter(|_| self.payload.len() == PRIORITY_BYTES).ok_or_else(|| self.size_fault())
    }

    /// Check PUSH_PROMISE, which a client may not send.
    pub fn check_promise(&self) -> Result<(), Http2Fault> {
        let (padding, data) = self.padded()?;
        let promised = data.first_chunk().map(|head| u32::from_be_bytes(*head)).ok_or_else(|| self.size_fault())?;
        if promised == 0 || promised % 2 != 0 {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, format!("stream {promised} cannot be promised")));
        }
        Self::unpadded(data, padding, self.payload.len()).map(|_| ())
    }

    /// Check GOAWAY, whose error code has no effect.
    pub fn check_goaway(&self) -> Result<(), Http2Fault> {
        if self.stream_id != 0 {
            return Err(Http2Fault::limit(PROTOCOL_ERROR, format!("GOAWAY has stream id {}, must be 0", self.stream_id)));
        }
        let length = self.payload.len();
        if length < GOAWAY_BYTES_MIN {
            let text = format!("GOAWAY has {length} bytes, at least {GOAWAY_BYTES_MIN} are needed");
            return Err(Http2Fault::limit(FRAME_SIZE_ERROR, text));
        }
        Ok(())
    }

    /// Check ALTSVC, which has no effect.
    pub fn check_alternative(&self) -> Result<(), Http2Fault> {
        let origin_bytes = self.payload.first_chunk().map(|head| usize::from(u16::from_be_bytes(*head)));
        match origin_bytes {
            Some(bytes) if bytes + 2 <= self.payload.len() => Ok(()),
            _ => Err(self.size_fault()),
        }
    }

    fn padded(&self) -> Result<(usize, &'a [u8]), Http2Fault> {
        if self.flags & PADDED == 0 {
            return Ok((0, self.payload));
        }
        let (&padding, data) = self.payload.split_first().ok_or_else(|| self.size_fault())?;
        Ok((usize::from(padding), data))
    }

    /// `data` without its padding, which has to be shorter than `bytes_max`.
    fn unpadded(data: &[u8], padding: usize, bytes_max: usize) -> Result<&[u8], Http2Fault> {
        if padding > 0 && padding >= bytes_max {
            return Err(Http2Fault::protocol(PROTOCOL_ERROR, "the padding of a frame is too long"));
        }
        Ok(&data[..data.len().saturating_sub(padding)])
    }
}

fn depends_on(data: &[u8]) -> Option<u32> {
    let head: &[u8; PRIORITY_BYTES] = data.first_chunk()?;
    Some(u32::from_be_bytes([head[0], head[1], head[2], head[3]]) & STREAM_ID_MASK)
}

/// The stream of the next frame if that is DATA and its head is complete.
pub fn data_stream(data: &[u8]) -> Option<u32> {
    let head: &[u8; HEAD_BYTES] = data.first_chunk()?;
    (head[3] == DATA).then(|| u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & STREAM_ID_MASK)
}

/// Counts the frames of one connection.
pub struct FrameScanner {
    block_bytes: Option<usize>, // of the header block being received
    resets: TokenBucket,
    pings: TokenBucket,
    settings: TokenBucket,
    empty_frames: TokenBucket,
}

impl FrameScanner {
    pub fn new(limits: &Limits, now: f64) -> Self {
        Self {
            block_bytes: None,
            resets: TokenBucket::new(limits.resets, now),
            pings: TokenBucket::new(limits.pings, now),
            settings: TokenBucket::new(limits.settings, now),
            empty_frames: TokenBucket::new(limits.empty_frames, now),
        }
    }

    pub fn is_in_block(&self) -> bool {
        self.block_bytes.is_some()
    }

    /// The next whole frame of `data`, None when more bytes are needed.
    pub fn next_frame<'a>(&mut self, data: &'a [u8], limits: &Limits, now: f64) -> Result<Option<Frame<'a>>, Http2Fault> {
        let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let (kind, flags) = (head[3], head[4]);
        if length > limits.frame_bytes_max {
            let reason = format!("a frame has {length} bytes, at most {} are allowed", limits.frame_bytes_max);
            return Err(Http2Fault::limit(FRAME_SIZE_ERROR, reason));
        }
        let length = length as usize;
        self.check_block(kind, length, limits)?;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let content_bytes = match payload.first() {
            Some(&padding) if kind == DATA && flags & PADDED != 0 => length.saturating_sub(1 + usize::from(padding)),
            _ => length,
        };
        self.count(kind, flags, content_bytes, now)?;
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block_bytes = (flags & END_HEADERS == 0).then(|| self.block_bytes.unwrap_or(0) + length);
        }
        let stream_id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & STREAM_ID_MASK;
        Ok(Some(Frame { kind, flags, stream_id, payload }))
    }

    /// A response was sent: peers measure bandwidth and open windows in answer to that.
    pub fn on_response(&mut self) {
        self.pings.fill();
        self.empty_frames.fill();
    }

    /// A stream was reset, by the peer or because of what it sent.
    pub fn count_reset(&mut self, now: f64) -> Result<(), Http2Fault> {
        take(&mut self.resets, now, "too many streams are reset")
    }

    fn check_block(&self, kind: u8, length: usize, limits: &Limits) -> Result<(), Http2Fault> {
        if self.block_bytes.is_some() && kind != CONTINUATION {
            return Err(Http2Fault::limit(PROTOCOL_ERROR, "a header block is interrupted by another frame"));
        }
        if kind == CONTINUATION && self.block_bytes.is_none() {
            return Err(Http2Fault::limit(PROTOCOL_ERROR, "a CONTINUATION frame without a header block"));
        }
        let bytes_max = limits.header_block_bytes_max;
        if matches!(kind, HEADERS | CONTINUATION) && self.block_bytes.unwrap_or(0) + length > bytes_max {
            return Err(Http2Fault::limit(ENHANCE_YOUR_CALM, format!("a header block has more than {bytes_max} bytes")));
        }
        Ok(())
    }

    fn count(&mut self, kind: u8, flags: u8, length: usize, now: f64) -> Result<(), Http2Fault> {
        match kind {
            HEADERS | GOAWAY => Ok(()),
            RST_STREAM => self.count_reset(now),
            PING if flags & ACK == 0 => take(&mut self.pings, now, "too_many_pings"),
            SETTINGS => take(&mut self.settings, now, "too many SETTINGS frames"),
            DATA | CONTINUATION if length > 0 || flags & END_STREAM != 0 => Ok(()),
            CONTINUATION if flags & END_HEADERS != 0 => Ok(()),
            _ => take(&mut self.empty_frames, now, "too many frames without effect"),
        }
    }
}

fn take(bucket: &mut TokenBucket, now: f64, reason: &str) -> Result<(), Http2Fault> {
    if bucket.take(now) { Ok(()) } else { Err(Http2Fault::limit(ENHANCE_YOUR_CALM, reason)) }
}

// --- frames of this side

/// Append a frame; a payload of ours has at most 16 MiB.
pub fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream_id: u32, payload: &[&[u8]]) {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    out.reserve(HEAD_BYTES + length);
    out.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream_id.to_be_bytes());
    for part in payload {
        out.extend_from_slice(part);
    }
}

pub fn write_reset(out: &mut Vec<u8>, stream_id: u32, code: u32) {
    write(out, RST_STREAM, 0, stream_id, &[&code.to_be_bytes()]);
}

pub fn write_window(out: &mut Vec<u8>, stream_id: u32, increment: u32) {
    write(out, WINDOW_UPDATE, 0, stream_id, &[&increment.to_be_bytes()]);
}

pub fn write_goaway(out: &mut Vec<u8>, last_stream_id: u32, code: u32, text: &[u8]) {
    write(out, GOAWAY, 0, 0, &[&last_stream_id.to_be_bytes(), &code.to_be_bytes(), text]);
}

/// The window that this side has opened for the peer, of a stream or of the connection.
pub struct ReceiveWindow {
    bytes_max: i64,
    bytes: i64,
    taken_bytes: i64, // that no WINDOW_UPDATE has given back yet
}

impl ReceiveWindow {
    pub fn new(bytes: u32) -> Self {
        Self { bytes_max: bytes.into(), bytes: bytes.into(), taken_bytes: 0 }
    }

    pub fn open(&mut self, increment: u32) {
        self.bytes += i64::from(increment);
        self.bytes_max = self.bytes_max.max(self.bytes);
    }

    pub fn receive(&mut self, bytes: usize) -> Result<(), Http2Fault> {
        self.bytes -= bytes as i64;
        if self.bytes < 0 {
            return Err(Http2Fault::protocol(FLOW_CONTROL_ERROR, "the peer sends more than the window allows"));
        }
        Ok(())
    }

    /// Bytes were taken out of the way: the increment that is to be sent, if one is due. Half a window at a time, and earlier
    /// when nothing is left.
    pub fn take(&mut self, bytes: usize) -> Option<u32> {
        self.taken_bytes += bytes as i64;
        let is_blocked = self.bytes == 0 && self.taken_bytes > (self.bytes_max / 4).min(1_024);
        if self.taken_bytes == 0 || !(is_blocked || self.taken_bytes >= self.bytes_max / 2) {
            return None;
        }
        let increment = self.taken_bytes.min(self.bytes_max - self.bytes);
        self.taken_bytes = 0;
        self.bytes += increment;
        u32::try_from(increment).ok().filter(|&increment| increment > 0)
    }
}
