//! Segments of the commit log for readers.

use pyo3::intern;
use pyo3::prelude::*;

use crate::constants::{PHYSICAL_OFFSET_AT, SYS_FLAG_AT};
use crate::window::Window;

const LOOKED_AT_BYTES: i32 = SYS_FLAG_AT as i32; // size to physical offset

/// One file of the log.
pub struct Segment {
    pub base: i64,
    pub end: i64,
    pub window: Window,
}

impl Segment {
    /// The segment that contains this offset; None without one.
    pub fn find(log: &Bound<'_, PyAny>, physical_offset: i64) -> PyResult<Option<Self>> {
        let py = log.py();
        let base: i64 = log.getattr(intern!(py, "base"))?.extract()?;
        if physical_offset >= base {
            let window = Window::new(&log.getattr(intern!(py, "buffer"))?)?;
            return Ok(Some(Self { base, end: base + window.len() as i64, window }).filter(|one| physical_offset < one.end));
        }
        let segment = log.call_method1(intern!(py, "segment_at"), (physical_offset,))?;
        if segment.is_none() {
            return Ok(None);
        }
        let base: i64 = segment.getattr(intern!(py, "base"))?.extract()?;
        let size: i64 = segment.getattr(intern!(py, "size"))?.extract()?;
        let buffer = segment.getattr(intern!(py, "file"))?.getattr(intern!(py, "buffer"))?;
        Ok(Some(Self { base, end: base + size, window: Window::new(&buffer)? }))
    }

    /// Append the record to `body`, if it says that it is the one: its own size and offset are right.
    pub fn append_record(&self, physical_offset: i64, size: i32, body: &mut Vec<u8>) -> bool {
        if size < LOOKED_AT_BYTES {
            return false;
        }
        let start = body.len();
        if !self.window.append_to(physical_offset - self.base, size as usize, body) {
            return false;
        }
        let record = &body[start..];
        let is_it = record[..4] == size.to_be_bytes() && record[PHYSICAL_OFFSET_AT..SYS_FLAG_AT] == physical_offset.to_be_bytes();
        if !is_it {
            body.truncate(start);
        }
        is_it
    }
}
