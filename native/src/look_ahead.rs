//! Frames of a burst from a guarded peer: some are read and verified together, and then served one by one.
//!
//! As many are looked ahead at as the last time were of use, and twice as many as soon as all were: where a frame is left to
//! the handlers, those behind it are read again. Each header is read once otherwise.

use crate::binary_header;
use crate::field::{AllFields, Value};
use crate::guard::{Asked, Guard, Shown};
use crate::json_header;
use crate::sha1_lanes::LANES;

/// All frames that are looked at together, beside the first, have so many bytes.
const BYTES_MAX: usize = 256 * 1024;

/// A whole frame. `body_at` may lie behind its end: then it is none.
pub struct Cut {
    pub kind: u8,
    pub end: usize,
    pub body_at: usize,
}

/// The frame that stands at `at`, if all of it is there.
#[inline]
pub fn cut(data: &[u8], at: usize) -> Option<Cut> {
    let words = data.get(at..)?.first_chunk::<8>()?;
    let length = u32::from_be_bytes([words[0], words[1], words[2], words[3]]) as usize;
    let end = at + 4 + length;
    let header_bytes = u32::from_be_bytes([0, words[5], words[6], words[7]]) as usize;
    (end <= data.len()).then_some(Cut { kind: words[4], end, body_at: at + 8 + header_bytes })
}

/// How many frames it is worth to look ahead at. Stays between bursts.
pub struct Reach(usize);

impl Default for Reach {
    fn default() -> Self {
        Self(LANES)
    }
}

/// The frames that were looked ahead at.
pub struct Ahead<'a> {
    frames: Vec<Shown<'a>>,
    /// Their fields.
    all: AllFields<'a>,
    count: usize,
    served: usize,
}

impl<'a> Ahead<'a> {
    pub fn new() -> Self {
        Self { frames: Vec::new(), all: AllFields::new(), count: 0, served: 0 }
    }

    /// The next frame, which stands at `at`, and where its fields are kept; None when what stands there is not ordinary.
    pub fn next(
        &mut self,
        reach: &mut Reach,
        guard: &mut Guard,
        asked: &Asked,
        data: &'a [u8],
        at: usize,
    ) -> Option<(&Shown<'a>, &AllFields<'a>)> {
        if self.served == self.count {
            self.done(reach);
            self.look(reach.0, data, at);
            guard.verify(asked, &mut self.frames[..self.count], &self.all);
        }
        let shown = self.frames[..self.count].get(self.served)?;
        self.served += 1;
        Some((shown, &self.all))
    }

    /// The last frame was left to others, or the burst is over.
    pub fn done(&self, reach: &mut Reach) {
        if self.served < self.count {
            reach.0 = self.served.max(1);
        } else if self.count == reach.0 {
            reach.0 = (2 * reach.0).min(LANES);
        }
    }

    /// Read so many frames, or fewer: up to the first that is not ordinary, or not whole.
    fn look(&mut self, reach: usize, data: &'a [u8], at: usize) {
        (self.count, self.served) = (0, 0);
        self.all.clear();
        let mut next = at;
        while self.count < reach && (self.count == 0 || next - at < BYTES_MAX) {
            let Some(found) = cut(data, next).filter(|found| found.body_at <= found.end) else { return };
            if self.frames.len() == self.frames.capacity() {
                // Many bursts are of one frame, the others get room at once.
                let more = if self.count == 0 { 1 } else { LANES - 1 };
                self.frames.reserve_exact(more);
                self.all.reserve(more);
            }
            if self.frames.len() == self.count {
                self.frames.push(Shown::new());
            }
            let shown = &mut self.frames[self.count];
            (shown.frame, shown.body) = (&data[next..found.end], &data[found.body_at..found.end]);
            shown.fields.keep_in(std::mem::replace(&mut self.all, AllFields::new()));
            let is_request = read(found.kind, &data[next + 8..found.body_at], shown).is_some();
            let Some((all, kept)) = shown.fields.take_kept() else { return };
            (self.all, shown.kept) = (all, kept);
            if !is_request {
                return;
            }
            next = found.end;
            self.count += 1;
        }
    }
}

/// Read a header; None when it is none, or not one of a request.
fn read<'a>(kind: u8, header: &'a [u8], shown: &mut Shown<'a>) -> Option<()> {
    shown.is_binary = kind == 1;
    match kind {
        0 => {
            let found = json_header::parse(header, &mut shown.fields).filter(|found| found.has_fields)?;
            (shown.code, shown.flag, shown.opaque) = (int(found.code)?, int(found.flag)?, int(found.opaque)?);
        }
        1 => {
            // A known field that is not UTF-8 is for the handlers here, as the guard has it.
            let found = binary_header::parse(header, &[], &mut shown.fields).filter(|found| found.mended == 0)?;
            (shown.code, shown.flag, shown.opaque) = (found.code.into(), found.flag.into(), found.opaque.into());
        }
        _ => return None,
    }
    Some(())
}

/// A JSON integer.
pub fn int(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Integer(value) => Some(value),
        _ => None,
    }
}
