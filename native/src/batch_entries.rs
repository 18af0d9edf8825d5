//! Rows of Arrow columns as the body of a batch (320). aerobee/spark/entry_codec.py describes the arguments; the
//! reference implementation is encode_batch_entry() of the message that sink_rows.py creates from a row, and it handles
//! every row that is not ordinary.

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::constants::{BATCH_ENTRY_HEAD_BYTES, PROPERTIES_BYTES_MAX};
use crate::client::UniqueIds;
use crate::window::View;

const PAIRS_MAX: i64 = 64;

/// A variable column: int32 offsets, bytes, and a bit a row that is 1 where there is a value. `first`: where row 0 is.
struct Texts {
    offsets: View,
    data: View,
    validity: Option<View>,
    first: i64,
}

/// (offsets, data, validity, first), as Python hands a column in.
type TextsIn<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, i64);
/// (offsets, validity, first, names, values) of a map.
type PairsIn<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>, i64, TextsIn<'py>, TextsIn<'py>);

fn beyond() -> PyErr {
    PyBufferError::new_err("a row lies beyond its column")
}

/// The 32 bits at `index`.
fn offset_at(offsets: &View, index: i64) -> PyResult<i64> {
    let bytes = index.checked_mul(4).and_then(|at| offsets.read::<4>(at)).ok_or_else(beyond)?;
    Ok(i64::from(i32::from_le_bytes(bytes)))
}

fn is_valid(validity: Option<&View>, index: i64) -> PyResult<bool> {
    let Some(bits) = validity else { return Ok(true) };
    let [byte] = bits.read::<1>(index >> 3).ok_or_else(beyond)?;
    Ok(byte & (1 << (index & 7)) != 0)
}

/// A view, or None without a validity buffer.
fn view_of(buffer: Option<&Bound<'_, PyAny>>) -> PyResult<Option<View>> {
    buffer.map(View::new).transpose()
}

impl Texts {
    fn new((offsets, data, validity, first): &TextsIn<'_>) -> PyResult<Self> {
        Ok(Self { offsets: View::new(offsets)?, data: View::new(data)?, validity: view_of(validity.as_ref())?, first: *first })
    }

    /// Position of a row's bytes: (at, size), None without a value.
    fn place(&self, row: i64) -> PyResult<Option<(i64, usize)>> {
        let index = self.first.checked_add(row).filter(|index| *index >= 0).ok_or_else(beyond)?;
        if !is_valid(self.validity.as_ref(), index)? {
            return Ok(None);
        }
        let (begin, end) = (offset_at(&self.offsets, index)?, offset_at(&self.offsets, index + 1)?);
        Ok(Some((begin, usize::try_from(end - begin).map_err(|_| beyond())?)))
    }

    /// Append a row's bytes to `out`; how many, 0 where it has no value, None for more than properties may have.
    fn append_to(&self, row: i64, out: &mut Vec<u8>) -> PyResult<Option<usize>> {
        let Some((at, size)) = self.place(row)? else { return Ok(Some(0)) };
        if size > PROPERTIES_BYTES_MAX {
            return Ok(None);
        }
        if self.data.append_to(at, size, out) { Ok(Some(size)) } else { Err(beyond()) }
    }
}

struct Pairs {
    offsets: View,
    validity: Option<View>,
    first: i64,
    names: Texts,
    values: Texts,
}

impl Pairs {
    fn new((offsets, validity, first, names, values): &PairsIn<'_>) -> PyResult<Self> {
        Ok(Self {
            offsets: View::new(offsets)?,
            validity: view_of(validity.as_ref())?,
            first: *first,
            names: Texts::new(names)?,
            values: Texts::new(values)?,
        })
    }

    /// Range of a row's pairs.
    fn range(&self, row: i64) -> PyResult<std::ops::Range<i64>> {
        let index = self.first.checked_add(row).filter(|index| *index >= 0).ok_or_else(beyond)?;
        if !is_valid(self.validity.as_ref(), index)? {
            return Ok(0..0);
        }
        Ok(offset_at(&self.offsets, index)?..offset_at(&self.offsets, index + 1)?)
    }
}

/// Whether text may stand in a property: UTF-8 without control characters.
fn is_clean(text: &[u8]) -> bool {
    text.iter().all(|byte| (0x20..0x7F).contains(byte))
        || (text.iter().all(|byte| *byte >= 0x20) && std::str::from_utf8(text).is_ok())
}

/// Entries of one batch until finish().
#[pyclass(module = "aerobee_native")]
pub struct BatchEntries {
    rows_max: usize,
    bytes_max: usize,
    body_bytes_max: usize,
    /// Names of properties that the reference implementation refuses, or sends in another way.
    left_names: Vec<Vec<u8>>,
    out: Vec<u8>,
    count: usize,
    is_full: bool,
    properties: Vec<u8>,
}

#[pymethods]
impl BatchEntries {
    #[new]
    fn new(rows_max: usize, bytes_max: usize, body_bytes_max: usize, left_names: Vec<Vec<u8>>) -> Self {
        Self {
            rows_max,
            bytes_max,
            body_bytes_max,
            left_names,
            out: Vec::new(),
            count: 0,
            is_full: false,
            properties: Vec::new(),
        }
    }

    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// Whether take() stopped because no more rows have space.
    #[getter]
    fn is_full(&self) -> bool {
        self.is_full
    }

    /// Add rows from `begin` to before `end`, each with a new id; return where it stopped: at `end`, when the batch is full,
    /// or at a row that is not ordinary. Raises BufferError for rows that the columns do not have.
    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        py: Python<'_>,
        ids: &Bound<'_, UniqueIds>,
        now_ms: i64,
        begin: i64,
        end: i64,
        value: TextsIn<'_>,
        key: Option<TextsIn<'_>>,
        tags: Option<TextsIn<'_>>,
        properties: Option<PairsIn<'_>>,
    ) -> PyResult<i64> {
        let columns = Columns {
            value: Texts::new(&value)?,
            key: key.as_ref().map(Texts::new).transpose()?,
            tags: tags.as_ref().map(Texts::new).transpose()?,
            properties: properties.as_ref().map(Pairs::new).transpose()?,
        };
        let mut ids = ids.borrow_mut();
        let mut row = begin;
        while row < end && !self.is_full {
            ids.advance(py, now_ms)?;
            match self.add(&columns, row, ids.text())? {
                Added::Whole => row += 1,
                Added::NoRoom => self.is_full = true,
                Added::FallBackToHandler => break,
            }
        }
        Ok(row)
    }

    /// The body; there are no rows then.
    fn finish<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = PyBytes::new(py, &self.out);
        self.out.clear();
        self.count = 0;
        self.is_full = false;
        body
    }
}

struct Columns {
    value: Texts,
    key: Option<Texts>,
    tags: Option<Texts>,
    properties: Option<Pairs>,
}

enum Added {
    Whole,
    NoRoom,
    FallBackToHandler,
}

impl BatchEntries {
    fn add(&mut self, columns: &Columns, row: i64, unique_id: &[u8]) -> PyResult<Added> {
        let Some((at, body_bytes)) = columns.value.place(row)? else { return Ok(Added::FallBackToHandler) };
        if body_bytes == 0 || body_bytes > self.body_bytes_max || !self.lay_out_properties(columns, row, unique_id)? {
            return Ok(Added::FallBackToHandler);
        }
        let size = BATCH_ENTRY_HEAD_BYTES + body_bytes + 2 + self.properties.len();
        if self.count > 0 && (self.count >= self.rows_max || self.out.len() + size > self.bytes_max) {
            return Ok(Added::NoRoom);
        }
        let (Ok(size), Ok(body), Ok(properties)) =
            (i32::try_from(size), i32::try_from(body_bytes), u16::try_from(self.properties.len()))
        else {
            return Ok(Added::FallBackToHandler);
        };
        let mut head = [0; BATCH_ENTRY_HEAD_BYTES];
        head[..4].copy_from_slice(&size.to_be_bytes());
        head[16..].copy_from_slice(&body.to_be_bytes());
        let start = self.out.len();
        self.out.extend_from_slice(&head);
        if !columns.value.data.append_to(at, body_bytes, &mut self.out) {
            self.out.truncate(start);
            return Err(beyond());
        }
        self.out.extend_from_slice(&properties.to_be_bytes());
        self.out.extend_from_slice(&self.properties);
        self.count += 1;
        Ok(Added::Whole)
    }

    /// The property text of a row, in properties_text()'s order; false when the row is not ordinary.
    fn lay_out_properties(&mut self, columns: &Columns, row: i64, unique_id: &[u8]) -> PyResult<bool> {
        let text = &mut self.properties;
        text.clear();
        if let Some(pairs) = &columns.properties {
            let range = pairs.range(row)?;
            if range.end - range.start > PAIRS_MAX {
                return Ok(false);
            }
            for pair in range {
                for (column, separator) in [(&pairs.names, 1), (&pairs.values, 2)] {
                    let start = text.len();
                    if column.append_to(pair, text)?.is_none_or(|size| size == 0)
                        || text.len() > PROPERTIES_BYTES_MAX
                        || !is_clean(&text[start..])
                    {
                        return Ok(false);
                    }
                    if separator == 1 && (self.left_names.iter().any(|name| name == &text[start..]) || has_name(text, start)) {
                        return Ok(false);
                    }
                    text.push(separator);
                }
            }
        }
        if let Some(key) = &columns.key {
            let start = text.len();
            text.extend_from_slice(b"KEYS\x01");
            let Some(size) = key.append_to(row, text)? else { return Ok(false) };
            if !text[text.len() - size..].iter().all(|byte| (0x21..0x7F).contains(byte)) {
                return Ok(false); // several keys, or one that Unicode may split
            }
            close_or_cut(text, start, size);
        }
        text.extend_from_slice(b"UNIQ_KEY\x01");
        text.extend_from_slice(unique_id);
        text.extend_from_slice(b"\x02WAIT\x01true\x02");
        if let Some(tags) = &columns.tags {
            let start = text.len();
            text.extend_from_slice(b"TAGS\x01");
            let Some(size) = tags.append_to(row, text)? else { return Ok(false) };
            if !is_clean(&text[text.len() - size..]) {
                return Ok(false);
            }
            close_or_cut(text, start, size);
        }
        Ok(text.len() <= PROPERTIES_BYTES_MAX)
    }
}

/// Close the pair that begins at `start` and whose value has `size` bytes; an empty one is no pair.
fn close_or_cut(text: &mut Vec<u8>, start: usize, size: usize) {
    if size == 0 {
        text.truncate(start);
    } else {
        text.push(2);
    }
}

/// Whether the name that stands at `start` is that of a pair before it.
fn has_name(text: &[u8], start: usize) -> bool {
    let (before, name) = text.split_at(start);
    before.split(|byte| *byte == 2).any(|pair| pair.strip_prefix(name).is_some_and(|rest| rest.first() == Some(&1)))
}
