//! Entries of the key index, written once a burst (LaneCore._write_index; layout in aerobee/store/index_file.py).

use pyo3::intern;
use pyo3::prelude::*;

use crate::window::Window;

const HEADER_BYTES: i64 = 40;
const ENTRY_BYTES: i64 = 20;
const NO_LIMIT: i64 = 1 << 30;

/// Index entries of a burst: (hash, physical offset), and how many more the open file takes.
#[derive(Default)]
pub struct Index {
    pub entries: Vec<(i32, i64)>,
    pub room: i64,
}

impl Index {
    /// Look at the open file, as LaneCore._begin does.
    pub fn load_room(&mut self, index: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = index.py();
        if !index.getattr(intern!(py, "is_enabled"))?.is_truthy()? {
            self.room = NO_LIMIT;
            return Ok(());
        }
        let files = index.getattr(intern!(py, "files"))?;
        self.room = 0;
        if files.is_truthy()? {
            let file = files.get_item(-1)?;
            let reserved: i64 = file.getattr(intern!(py, "reserved"))?.extract()?;
            let most: i64 = file.getattr(intern!(py, "entry_count_max"))?.extract()?;
            let count: i64 = file.getattr(intern!(py, "count"))?.extract()?;
            self.room = reserved.min(most) - count;
        }
        Ok(())
    }

    /// Write the entries collected so far, file header included.
    pub fn write(&mut self, index: &Bound<'_, PyAny>, now_ms: i64) -> PyResult<()> {
        let py = index.py();
        if self.entries.is_empty() || !index.getattr(intern!(py, "is_enabled"))?.is_truthy()? {
            self.entries.clear();
            return Ok(());
        }
        let file = index.getattr(intern!(py, "files"))?.get_item(-1)?;
        let mut entries = self.entries.as_slice();
        let mut count: i64 = file.getattr(intern!(py, "count"))?.extract()?;
        if count == 1 {
            // The file's first entry sets its beginning.
            let (hash, offset) = entries[0];
            file.call_method1(intern!(py, "put"), (hash, offset, now_ms))?;
            entries = &entries[1..];
            count = 2;
        }
        let begin: i64 = file.getattr(intern!(py, "begin_timestamp"))?.extract()?;
        let begin_offset: i64 = file.getattr(intern!(py, "begin_physical_offset"))?.extract()?;
        let slot_count: i64 = file.getattr(intern!(py, "slot_count"))?.extract()?;
        let entries_at: i64 = file.getattr(intern!(py, "entries_at"))?.extract()?;
        let mut used: i64 = file.getattr(intern!(py, "used_slots"))?.extract()?;
        let mut end_offset: i64 = file.getattr(intern!(py, "end_physical_offset"))?.extract()?;
        let window = Window::new(&file.getattr(intern!(py, "buffer"))?)?;
        let seconds = now_ms.saturating_sub(begin).div_euclid(1000).clamp(0, i64::from(i32::MAX)) as i32;
        for (hash, offset) in entries {
            let slot_at = HEADER_BYTES + i64::from(*hash) % slot_count * 4;
            let mut previous = i64::from(i32::from_be_bytes(window.read(slot_at).ok_or_else(beyond)?));
            if !(0 < previous && previous < count) {
                previous = 0;
                used += 1;
            }
            let mut entry = [0; ENTRY_BYTES as usize];
            entry[..4].copy_from_slice(&hash.to_be_bytes());
            entry[4..12].copy_from_slice(&offset.to_be_bytes());
            entry[12..16].copy_from_slice(&seconds.to_be_bytes());
            entry[16..].copy_from_slice(&(previous as i32).to_be_bytes());
            let written = window.write(entries_at + count * ENTRY_BYTES, &entry)
                && window.write(slot_at, &(count as i32).to_be_bytes());
            if !written {
                return Err(beyond());
            }
            count += 1;
            end_offset = *offset;
        }
        if let Some((_, first)) = entries.first() {
            if file.getattr(intern!(py, "dirty_from"))?.extract::<i64>()? < 0 {
                file.setattr(intern!(py, "dirty_from"), first)?;
            }
            file.setattr(intern!(py, "used_slots"), used)?;
            file.setattr(intern!(py, "count"), count)?;
            file.setattr(intern!(py, "end_physical_offset"), end_offset)?;
        }
        file.setattr(intern!(py, "end_timestamp"), now_ms)?;
        let mut header = [0; HEADER_BYTES as usize];
        for (at, value) in [begin, now_ms, begin_offset, end_offset].iter().enumerate() {
            header[at * 8..at * 8 + 8].copy_from_slice(&value.to_be_bytes());
        }
        header[32..36].copy_from_slice(&(used as i32).to_be_bytes());
        header[36..].copy_from_slice(&(count as i32).to_be_bytes());
        if !window.write(0, &header) {
            return Err(beyond());
        }
        self.entries.clear();
        Ok(())
    }
}

fn beyond() -> PyErr {
    pyo3::exceptions::PyBufferError::new_err("an index entry lies beyond its file")
}
