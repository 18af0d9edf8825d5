//! Windows on the buffers that Python lends for a burst: mapped files, byte arrays; and views of those that are only read.
//!
//! The only file with unsafe code. A `View` keeps the buffer exported, so that its memory can neither go away nor be
//! resized, and every access is checked against its length before a byte moves. Bytes are copied, never referenced:
//! other parts of the process may write to the same memory between two accesses.

#![allow(unsafe_code)]

use std::ops::Deref;
use std::ptr::NonNull;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// A contiguous buffer of bytes, exported until this is dropped (with the interpreter held).
pub struct View {
    _buffer: PyBuffer<u8>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `start` points into the memory that `_buffer` keeps exported, and `PyBuffer` may itself move between threads.
// A view is only used while the interpreter is held, in a burst under the fast path's lock too.
unsafe impl Send for View {}

/// A `View` that can be written.
pub struct Window(View);

impl Deref for Window {
    type Target = View;

    fn deref(&self) -> &View {
        &self.0
    }
}

impl Window {
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let view = View::new(object)?;
        if view._buffer.readonly() {
            return Err(PyBufferError::new_err("the fast path needs a writable buffer"));
        }
        Ok(Self(view))
    }

    /// Copy `bytes` to `at`; false, and nothing written, when they do not fit.
    #[must_use]
    pub fn write(&self, at: i64, bytes: &[u8]) -> bool {
        let Some(at) = self.checked(at, bytes.len()) else { return false };
        // SAFETY: `checked` says that `at + bytes.len()` lies within the exported buffer, which is writable (`new`) and
        // stays in place while `_buffer` lives. `copy` allows the source to overlap.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
        true
    }
}

impl View {
    pub fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        let slice =
            buffer.as_slice_ptr().ok_or_else(|| PyBufferError::new_err("native code needs a contiguous buffer"))?;
        Ok(Self { start: slice.cast::<u8>(), len: slice.len(), _buffer: buffer })
    }

    /// The buffer's length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Append `size` bytes from `at` on to `out`; false, and nothing appended, when the buffer ends before.
    #[must_use]
    pub fn append_to(&self, at: i64, size: usize, out: &mut Vec<u8>) -> bool {
        let Some(at) = self.checked(at, size) else { return false };
        out.reserve(size);
        let end = out.len();
        // SAFETY: the source is within the exported buffer (`checked`), the target within the capacity just reserved,
        // and the bytes up to the new length are initialised by the copy.
        unsafe {
            std::ptr::copy(self.start.as_ptr().add(at), out.as_mut_ptr().add(end), size);
            out.set_len(end + size);
        }
        true
    }

    /// Copy `N` bytes at `at`, or None when the buffer ends before.
    pub fn read<const N: usize>(&self, at: i64) -> Option<[u8; N]> {
        let at = self.checked(at, N)?;
        let mut bytes = [0; N];
        // SAFETY: the source is within the exported buffer (`checked`), the target is a local array of N bytes.
        unsafe { std::ptr::copy(self.start.as_ptr().add(at), bytes.as_mut_ptr(), N) };
        Some(bytes)
    }

    /// `at` as an index, when `size` bytes from there on are inside.
    fn checked(&self, at: i64, size: usize) -> Option<usize> {
        let at = usize::try_from(at).ok()?;
        (at.checked_add(size)? <= self.len).then_some(at)
    }
}
