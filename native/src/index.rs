//! Entries of the key index, written once a burst (layout in aerobee/store/index/index_file.py).

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

use crate::window::Window;

const HEADER_BYTES: i64 = 40;
const ENTRY_BYTES: i64 = 20;
const NO_LIMIT: i64 = 1 << 30;

/// Index entries of a burst: (hash, physical offset), and how many more the open file takes.
#[derive(Default)]
pub struct Index {
    pub entries: Vec<(i32, i64)>,
    pub room: i64,
    open: Option<OpenFile>,
}

/// The open file's numbers after the last burst. They are read again when the file is another one or has another count:
/// then Python code has written to it.
struct OpenFile {
    file: Py<PyAny>,
    count: i64,
    room_end: i64,
    begin: i64,
    begin_offset: i64,
    end_offset: i64,
    slot_count: i64,
    entries_at: i64,
    used: i64,
}

impl OpenFile {
    fn load(file: &Bound<'_, PyAny>, count: i64) -> PyResult<Self> {
        let py = file.py();
        let number = |name: &Bound<'_, PyString>| file.getattr(name)?.extract::<i64>();
        Ok(Self {
            count,
            room_end: number(intern!(py, "reserved"))?.min(number(intern!(py, "entry_count_max"))?),
            begin: number(intern!(py, "begin_timestamp"))?,
            begin_offset: number(intern!(py, "begin_physical_offset"))?,
            end_offset: number(intern!(py, "end_physical_offset"))?,
            slot_count: number(intern!(py, "slot_count"))?,
            entries_at: number(intern!(py, "entries_at"))?,
            used: number(intern!(py, "used_slots"))?,
            file: file.clone().unbind(),
        })
    }
}

impl Index {
    /// Read the numbers of the open file; `files` are the index's files, None when the index is off.
    pub fn load_room(&mut self, files: Option<&Bound<'_, PyList>>, again: bool) -> PyResult<()> {
        let Some(files) = files else {
            self.room = NO_LIMIT;
            return Ok(());
        };
        self.room = 0;
        if files.is_empty() {
            self.open = None;
            return Ok(());
        }
        let file = files.get_item(files.len() - 1)?;
        let count: i64 = file.getattr(intern!(files.py(), "count"))?.extract()?;
        if again || self.open.as_ref().is_none_or(|open| !open.file.is(&file) || open.count != count) {
            self.open = Some(OpenFile::load(&file, count)?);
        }
        self.room = self.open.as_ref().map_or(0, |open| open.room_end - count);
        Ok(())
    }

    /// Write the entries collected so far, all with this store time, file header included.
    pub fn write(&mut self, files: Option<&Bound<'_, PyList>>, now_ms: i64) -> PyResult<()> {
        self.write_all(files, &[], now_ms)
    }

    /// As write(), each entry with its store time.
    pub fn write_timed(&mut self, files: Option<&Bound<'_, PyList>>, times: &[i64]) -> PyResult<()> {
        debug_assert_eq!(times.len(), self.entries.len());
        self.write_all(files, times, times.last().copied().unwrap_or(0))
    }

    /// `times` are the store times of the entries; entries beyond its end have `last_ms`.
    fn write_all(&mut self, files: Option<&Bound<'_, PyList>>, times: &[i64], last_ms: i64) -> PyResult<()> {
        let Some(files) = files.filter(|files| !self.entries.is_empty() && !files.is_empty()) else {
            self.entries.clear();
            return Ok(());
        };
        let py = files.py();
        let file = files.get_item(files.len() - 1)?;
        let (mut entries, mut times) = (self.entries.as_slice(), times);
        let count: i64 = file.getattr(intern!(py, "count"))?.extract()?;
        let mut known = self.open.take().filter(|open| open.file.is(&file) && open.count == count);
        if count == 1 {
            // The file's first entry sets its begin timestamp and offset.
            let (hash, offset) = entries[0];
            file.call_method1(intern!(py, "put"), (hash, offset, times.first().copied().unwrap_or(last_ms)))?;
            entries = &entries[1..];
            times = times.get(1..).unwrap_or_default();
            known = None;
        }
        let mut open = match known {
            Some(open) => open,
            None => OpenFile::load(&file, file.getattr(intern!(py, "count"))?.extract()?)?,
        };
        let window = Window::new(&file.getattr(intern!(py, "buffer"))?)?;
        let begin = open.begin;
        let since = |time: i64| if begin > 0 { time.saturating_sub(begin).div_euclid(1000).clamp(0, i64::from(i32::MAX)) as i32 } else { 0 };
        let (mut time, mut seconds) = (last_ms, since(last_ms));
        for (number, (hash, offset)) in entries.iter().enumerate() {
            if let Some(own) = times.get(number).copied().filter(|own| *own != time) {
                (time, seconds) = (own, since(own));
            }
            let slot_at = HEADER_BYTES + i64::from(*hash) % open.slot_count * 4;
            let mut previous = i64::from(i32::from_be_bytes(window.read(slot_at).ok_or_else(beyond)?));
            if !(0 < previous && previous < open.count) {
                previous = 0;
                open.used += 1;
            }
            let mut entry = [0; ENTRY_BYTES as usize];
            entry[..4].copy_from_slice(&hash.to_be_bytes());
            entry[4..12].copy_from_slice(&offset.to_be_bytes());
            entry[12..16].copy_from_slice(&seconds.to_be_bytes());
            entry[16..].copy_from_slice(&(previous as i32).to_be_bytes());
            let written = window.write(open.entries_at + open.count * ENTRY_BYTES, &entry)
                && window.write(slot_at, &(open.count as i32).to_be_bytes());
            if !written {
                return Err(beyond());
            }
            open.count += 1;
            open.end_offset = *offset;
        }
        if let Some((_, first)) = entries.first() {
            if file.getattr(intern!(py, "dirty_from"))?.extract::<i64>()? < 0 {
                file.setattr(intern!(py, "dirty_from"), first)?;
            }
            file.setattr(intern!(py, "used_slots"), open.used)?;
            file.setattr(intern!(py, "count"), open.count)?;
            file.setattr(intern!(py, "end_physical_offset"), open.end_offset)?;
        }
        file.setattr(intern!(py, "end_timestamp"), last_ms)?;
        let mut header = [0; HEADER_BYTES as usize];
        for (at, value) in [open.begin, last_ms, open.begin_offset, open.end_offset].iter().enumerate() {
            header[at * 8..at * 8 + 8].copy_from_slice(&value.to_be_bytes());
        }
        header[32..36].copy_from_slice(&(open.used as i32).to_be_bytes());
        header[36..].copy_from_slice(&(open.count as i32).to_be_bytes());
        if !window.write(0, &header) {
            return Err(beyond());
        }
        self.open = Some(open);
        self.entries.clear();
        Ok(())
    }
}

fn beyond() -> PyErr {
    pyo3::exceptions::PyBufferError::new_err("an index entry lies beyond its file")
}
