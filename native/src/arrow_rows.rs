//! Converts messages of pull replies to buffers of Arrow columns. aerobee/spark/rows.py is the reference
//! implementation: PythonRows describes each buffer, and NativeRows passes records that `take` does not convert to
//! Python.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::constants::{
    BODY_SIZE_AT, BORN_HOST_V6, BORN_TIMESTAMP_AT, HEAD_BYTES, INNER_BATCH, LMQ_PREFIX, MAGIC_AT, MAGIC_V1,
    NEED_UNWRAP, PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, RECONSUME_TIMES_AT, RECORD_BYTES_MIN, RETRY_PREFIX,
    STORE_HOST_V6, STORE_TIMESTAMP_AT, SYS_FLAG_AT,
};

const COMPRESSED: u32 = 0x1;
/// Compressed, an IPv6 host, a batch in one record.
const NOT_ORDINARY: u32 = COMPRESSED | (BORN_HOST_V6 | STORE_HOST_V6 | NEED_UNWRAP | INNER_BATCH) as u32;
const US_PER_MS: i64 = 1000;
const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";

/// A variable column that grows.
#[derive(Default)]
struct Texts {
    offsets: Vec<u8>,
    data: Vec<u8>,
    validity: Vec<u8>,
    count: usize,
    missing: usize,
}

impl Texts {
    fn new() -> Self {
        Self { offsets: vec![0; 4], ..Self::default() }
    }

    /// Fails when the bytes of all rows exceed what an offset of 32 bits tells.
    fn add(&mut self, value: Option<&[u8]>) -> PyResult<()> {
        if self.count % 8 == 0 {
            self.validity.push(0);
        }
        match value {
            Some(bytes) => {
                self.data.extend_from_slice(bytes);
                if let Some(last) = self.validity.last_mut() {
                    *last |= 1 << (self.count % 8);
                }
            }
            None => self.missing += 1,
        }
        let end = i32::try_from(self.data.len()).map_err(|_| too_large())?;
        self.offsets.extend_from_slice(&end.to_le_bytes());
        self.count += 1;
        Ok(())
    }

    fn laid_out<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let validity = (self.missing > 0).then(|| PyBytes::new(py, &self.validity));
        (PyBytes::new(py, &self.offsets), PyBytes::new(py, &self.data), validity).into_bound_py_any(py)
    }
}

fn too_large() -> PyErr {
    PyOverflowError::new_err("a column of one batch holds more than 2 GiB: ask for smaller batches")
}

/// Requested columns: bits in the order of LAID_OUT.
#[derive(Clone, Copy)]
struct Mask(u32);

impl Mask {
    fn has(self, column: u32) -> bool {
        self.0 & (1 << column) != 0
    }
}

const VALUE: u32 = 0;
const KEY: u32 = 1;
const TAGS: u32 = 2;
const MSG_ID: u32 = 3;
const PROPERTIES: u32 = 4;
const QUEUE_OFFSET: u32 = 5;
const BORN_TS: u32 = 6;
const STORE_TS: u32 = 7;
const RECONSUME_TIMES: u32 = 8;

/// Twin of PythonRows.
#[pyclass(module = "aerobee_native")]
pub struct ArrowRows {
    topic: Vec<u8>,
    is_plain_topic: bool,
    mask: Mask,
    wanted_tags: Vec<Vec<u8>>,
    columns: Columns,
}

struct Columns {
    count: usize,
    size_bytes: usize,
    texts: [Texts; 4],
    fixed: [Vec<u8>; 4],
    pair_offsets: Vec<u8>,
    names: Texts,
    values: Texts,
}

impl Columns {
    fn new() -> Self {
        Self {
            count: 0,
            size_bytes: 0,
            texts: std::array::from_fn(|_| Texts::new()),
            fixed: Default::default(),
            pair_offsets: vec![0; 4],
            names: Texts::new(),
            values: Texts::new(),
        }
    }

    fn add_pair(&mut self, name: &[u8], value: &[u8]) -> PyResult<()> {
        self.size_bytes += name.len() + value.len();
        self.names.add(Some(name))?;
        self.values.add(Some(value))
    }

    fn end_pairs(&mut self) -> PyResult<()> {
        let end = i32::try_from(self.names.count).map_err(|_| too_large())?;
        self.pair_offsets.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }
}

/// The columns that both ways to add a row fill alike. Times in microseconds.
struct Row<'a> {
    value: &'a [u8],
    key: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
    msg_id: &'a [u8],
    queue_offset: i64,
    born_ts: i64,
    store_ts: i64,
    reconsume_times: i32,
}

impl ArrowRows {
    fn add_row(&mut self, row: &Row<'_>) -> PyResult<()> {
        let (mask, columns) = (self.mask, &mut self.columns);
        columns.count += 1;
        columns.size_bytes += row.value.len();
        for (column, value) in [(VALUE, Some(row.value)), (KEY, row.key), (TAGS, row.tags), (MSG_ID, Some(row.msg_id))] {
            if mask.has(column) {
                columns.texts[column as usize].add(value)?;
            }
        }
        for (column, number) in [(QUEUE_OFFSET, row.queue_offset), (BORN_TS, row.born_ts), (STORE_TS, row.store_ts)] {
            if mask.has(column) {
                columns.fixed[(column - QUEUE_OFFSET) as usize].extend_from_slice(&number.to_le_bytes());
            }
        }
        if mask.has(RECONSUME_TIMES) {
            columns.fixed[3].extend_from_slice(&row.reconsume_times.to_le_bytes());
        }
        Ok(())
    }

    fn wants(&self, tag: Option<&[u8]>) -> bool {
        self.wanted_tags.is_empty() || tag.is_some_and(|tag| self.wanted_tags.iter().any(|each| each == tag))
    }
}

#[pymethods]
impl ArrowRows {
    #[new]
    fn new(topic: Vec<u8>, mask: u32, wanted_tags: Vec<Vec<u8>>) -> Self {
        let is_plain_topic = !topic.starts_with(RETRY_PREFIX) && !topic.starts_with(LMQ_PREFIX);
        Self { topic, is_plain_topic, mask: Mask(mask), wanted_tags, columns: Columns::new() }
    }

    #[getter]
    fn count(&self) -> usize {
        self.columns.count
    }

    #[getter]
    fn size_bytes(&self) -> usize {
        self.columns.size_bytes
    }

    /// Add the records from byte `at` on whose offsets are from `begin` to before `end`; return where it stopped: at the
    /// end, or at a record that is not ordinary. An ordinary record is of this topic, and has two IPv4 hosts, an
    /// uncompressed body that matches its CRC, times that fit, and properties in UTF-8 without a name twice.
    fn take(&mut self, data: &Bound<'_, PyBytes>, at: usize, begin: i64, end: i64, offset_delta: i64) -> PyResult<usize> {
        let bytes = data.as_bytes();
        let mut at = at;
        if !self.is_plain_topic {
            return Ok(at);
        }
        while let Some(record) = bytes.get(at..).and_then(|rest| Record::ordinary(rest, &self.topic)) {
            let Some(properties) = Properties::of(record.properties, self.mask.has(PROPERTIES)) else { break };
            let Some(offset) = record.queue_offset.checked_add(offset_delta) else { break };
            let (Some(born_ts), Some(store_ts)) =
                (record.born_ms.checked_mul(US_PER_MS), record.store_ms.checked_mul(US_PER_MS))
            else {
                break;
            };
            at += record.size;
            if !(begin..end).contains(&offset) || !self.wants(properties.tags) {
                continue;
            }
            let mut place = [0; 32];
            let row = Row {
                value: record.body,
                key: properties.keys,
                tags: properties.tags,
                msg_id: properties.unique_id.unwrap_or_else(|| record.place(&mut place)),
                queue_offset: offset,
                born_ts,
                store_ts,
                reconsume_times: record.reconsume_times,
            };
            self.add_row(&row)?;
            if self.mask.has(PROPERTIES) {
                for (name, value) in pairs(record.properties) {
                    self.columns.add_pair(name, value)?;
                }
                self.columns.end_pairs()?;
            }
        }
        Ok(at)
    }

    /// Add one row that Python made.
    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        value: &[u8],
        key: Option<&[u8]>,
        tags: Option<&[u8]>,
        msg_id: &[u8],
        queue_offset: i64,
        born_ts: i64,
        store_ts: i64,
        reconsume_times: i32,
        properties: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> PyResult<()> {
        self.add_row(&Row { value, key, tags, msg_id, queue_offset, born_ts, store_ts, reconsume_times })?;
        if self.mask.has(PROPERTIES) {
            for (name, text) in &properties {
                self.columns.add_pair(name, text)?;
            }
            self.columns.end_pairs()?;
        }
        Ok(())
    }

    /// Return the requested columns in the order of LAID_OUT, and remove all rows.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns = std::mem::replace(&mut self.columns, Columns::new());
        let made = PyList::empty(py);
        for (column, texts) in (VALUE..=MSG_ID).zip(&columns.texts) {
            if self.mask.has(column) {
                made.append(texts.laid_out(py)?)?;
            }
        }
        if self.mask.has(PROPERTIES) {
            let parts = [
                PyBytes::new(py, &columns.pair_offsets).into_any(),
                columns.names.laid_out(py)?,
                columns.values.laid_out(py)?,
            ];
            made.append(PyTuple::new(py, parts)?)?;
        }
        for (column, numbers) in (QUEUE_OFFSET..=RECONSUME_TIMES).zip(&columns.fixed) {
            if self.mask.has(column) {
                made.append(PyBytes::new(py, numbers))?;
            }
        }
        Ok(made)
    }
}

/// The pairs of a property text that are whole: a name, \x01, a value, both not empty.
fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == 2).filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == 1)?;
        let (name, value) = (&pair[..at], &pair[at + 1..]);
        (!name.is_empty() && !value.is_empty()).then_some((name, value))
    })
}

/// The properties that columns are made of.
#[derive(Default)]
struct Properties<'a> {
    keys: Option<&'a [u8]>,
    tags: Option<&'a [u8]>,
    unique_id: Option<&'a [u8]>,
}

impl<'a> Properties<'a> {
    /// None when the text is not UTF-8, or has a name twice that matters: of equal names the last counts.
    fn of(text: &'a [u8], all: bool) -> Option<Self> {
        std::str::from_utf8(text).ok()?;
        let mut found = Self::default();
        for (number, (name, value)) in pairs(text).enumerate() {
            let slot = match name {
                b"KEYS" => &mut found.keys,
                b"TAGS" => &mut found.tags,
                b"UNIQ_KEY" => &mut found.unique_id,
                _ if all && pairs(text).take(number).any(|(earlier, _)| earlier == name) => return None,
                _ => continue,
            };
            if slot.replace(value).is_some() {
                return None;
            }
        }
        Some(found)
    }
}

struct Record<'a> {
    size: usize,
    queue_offset: i64,
    physical_offset: &'a [u8],
    born_ms: i64,
    store_ms: i64,
    store_host: &'a [u8],
    reconsume_times: i32,
    body: &'a [u8],
    properties: &'a [u8],
}

impl<'a> Record<'a> {
    fn ordinary(bytes: &'a [u8], wanted: &[u8]) -> Option<Self> {
        let head = bytes.get(..HEAD_BYTES)?;
        let word = |at: usize| -> Option<u32> { Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?)) };
        let long = |at: usize| -> Option<i64> { Some(i64::from_be_bytes(head.get(at..at + 8)?.try_into().ok()?)) };
        let size = word(0)? as usize;
        if word(MAGIC_AT)? != MAGIC_V1 || word(SYS_FLAG_AT)? & NOT_ORDINARY != 0 || size < RECORD_BYTES_MIN {
            return None;
        }
        let record = bytes.get(..size)?;
        let body_size = usize::try_from(word(BODY_SIZE_AT)? as i32).ok()?;
        let (body, rest) = record[HEAD_BYTES..].split_at_checked(body_size)?;
        let (topic_size, rest) = rest.split_first()?;
        let (topic, rest) = rest.split_at_checked(usize::from(*topic_size))?;
        let (properties_size, properties) = rest.split_first_chunk::<2>()?;
        if topic != wanted || usize::from(u16::from_be_bytes(*properties_size)) != properties.len() {
            return None;
        }
        let crc = word(8)?;
        if crc != 0 && crc32fast::hash(body) & 0x7FFF_FFFF != crc {
            return None;
        }
        Some(Self {
            size,
            queue_offset: long(QUEUE_OFFSET_AT)?,
            physical_offset: &head[PHYSICAL_OFFSET_AT..SYS_FLAG_AT],
            born_ms: long(BORN_TIMESTAMP_AT)?,
            store_ms: long(STORE_TIMESTAMP_AT)?,
            store_host: &head[STORE_TIMESTAMP_AT + 8..RECONSUME_TIMES_AT],
            reconsume_times: word(RECONSUME_TIMES_AT)? as i32,
            body,
            properties,
        })
    }

    /// The id that names the record's offset: upper-case hex of store host and physical offset.
    fn place<'b>(&self, out: &'b mut [u8; 32]) -> &'b [u8] {
        for (pair, byte) in out.chunks_exact_mut(2).zip(self.store_host.iter().chain(self.physical_offset)) {
            pair[0] = HEX_UPPER[usize::from(byte >> 4)];
            pair[1] = HEX_UPPER[usize::from(byte & 15)];
        }
        out
    }
}
