//! Look-ahead in a burst of a guarded peer: reads and verifies the signatures of several frames together, and then
//! serves them one by one.
//!
//! The depth is the number of useful frames of the last time, doubled when all were useful: after a frame that is left
//! to the handlers, the following ones are read again. Each header is read once otherwise.

use crate::binary_header;
use crate::constants::HEADER_BYTES_MAX;
use crate::field::{AllFields, Value, emptied};
use crate::guard::{Asked, Guard, Shown};
use crate::json_header;
use crate::sha1_lanes::LANES;

/// Maximum bytes of the frames that are read ahead together, except the first.
const BYTES_MAX: usize = 256 * 1024;

/// A whole frame. `body_at` behind the end means an invalid frame.
pub struct Cut {
    pub kind: u8,
    pub end: usize,
    pub body_at: usize,
}

/// The frame at `at`, if it is complete.
#[inline]
pub fn cut(data: &[u8], at: usize) -> Option<Cut> {
    let words = data.get(at..)?.first_chunk::<8>()?;
    let length = u32::from_be_bytes([words[0], words[1], words[2], words[3]]) as usize;
    let end = at + 4 + length;
    let header_bytes = u32::from_be_bytes([0, words[5], words[6], words[7]]) as usize;
    // A frame with too long a header is invalid: the connection's decoder refuses it.
    let body_at = if header_bytes > HEADER_BYTES_MAX { usize::MAX } else { at + 8 + header_bytes };
    (end <= data.len()).then_some(Cut { kind: words[4], end, body_at })
}

/// Depth of the look-ahead, and its memory. Stays between bursts.
pub struct Reach {
    count: usize,
    frames: Vec<Shown<'static>>,
    all: AllFields<'static>,
}

impl Default for Reach {
    fn default() -> Self {
        Self { count: LANES, frames: Vec::with_capacity(LANES), all: AllFields::new() }
    }
}

/// The frames that were looked ahead at.
pub struct Ahead<'a> {
    reach: usize,
    frames: Vec<Shown<'a>>,
    /// Their fields.
    all: AllFields<'a>,
    served: usize,
}

impl<'a> Ahead<'a> {
    pub fn new(reach: &mut Reach) -> Self {
        let frames = emptied(std::mem::take(&mut reach.frames));
        let all = std::mem::replace(&mut reach.all, AllFields::new()).emptied();
        Self { reach: reach.count, frames, all, served: 0 }
    }

    /// The next frame, which stands at `at`, and where its fields are kept; None for a frame that is not ordinary.
    pub fn next(&mut self, guard: &mut Guard, asked: &Asked, data: &'a [u8], at: usize) -> Option<(&Shown<'a>, &AllFields<'a>)> {
        if self.served == self.frames.len() {
            self.learn();
            self.look(data, at);
            guard.verify(asked, &mut self.frames, &self.all);
        }
        let shown = self.frames.get(self.served)?;
        self.served += 1;
        Some((shown, &self.all))
    }

    /// Called when the last frame was left to the handlers, or the burst has ended.
    pub fn done(mut self, reach: &mut Reach) {
        self.learn();
        *reach = Reach { count: self.reach, frames: emptied(self.frames), all: self.all.emptied() };
    }

    /// Record how many of the frames read ahead were useful.
    fn learn(&mut self) {
        if self.served < self.frames.len() {
            self.reach = self.served.max(1);
        } else if self.served == self.reach {
            self.reach = (2 * self.reach).min(LANES);
        }
    }

    /// Read up to `reach` frames, and stop at the first one that is not ordinary or not whole.
    fn look(&mut self, data: &'a [u8], at: usize) {
        self.frames.clear();
        self.served = 0;
        self.all.clear();
        let mut next = at;
        while self.frames.len() < self.reach && (next == at || next - at < BYTES_MAX) {
            let Some(found) = cut(data, next) else { return };
            let Some(shown) = read(found.kind, &data[next..found.end], found.body_at - next, &mut self.all) else { return };
            self.frames.push(shown);
            next = found.end;
        }
    }
}

/// Read a frame; None when its header is invalid, or is not a request's.
fn read<'a>(kind: u8, frame: &'a [u8], body_at: usize, all: &mut AllFields<'a>) -> Option<Shown<'a>> {
    let header = frame.get(8..body_at)?;
    let is_binary = kind == 1;
    let (code, flag, opaque) = match kind {
        0 => {
            let found = json_header::parse(header, all).filter(|found| found.has_fields)?;
            (int(found.code)?, int(found.flag)?, int(found.opaque)?)
        }
        1 => {
            // A known field that is not UTF-8 is for the handlers here, as the guard has it.
            let found = binary_header::parse(header, &[], all).filter(|found| found.mended == 0)?;
            (found.code.into(), found.flag.into(), found.opaque.into())
        }
        _ => return None,
    };
    let kept = all.end_header();
    Some(Shown { code, flag, opaque, is_binary, kept, body: &frame[body_at..], frame, order: None, verdict: None })
}

/// A JSON integer.
pub fn int(value: Value<'_>) -> Option<i64> {
    match value {
        Value::Integer(value) => Some(value),
        _ => None,
    }
}
