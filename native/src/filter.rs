//! SQL92 filters over the bytes of stored records. aerobee/broker/filter/program.py creates and describes the programs,
//! record_test.py is their reference implementation; a fuzz compares both (tests/fuzz/sql92_against_sqlite.py).

use std::cmp::Ordering;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PyTuple};

use crate::constants::{BORN_HOST_V6, HEAD_BYTES, MAGIC_AT, MAGIC_V1, MAGIC_V2, STORE_HOST_V6, SYS_FLAG_AT};

const LONGER_ADDRESS_BYTES: usize = 12;
const DEPTH_MAX: usize = 100;
const NAMES_MAX: usize = 64;

/// TRUE, FALSE, or None for NULL.
type Truth = Option<bool>;

/// One compiled expression.
pub struct Filter {
    names: Vec<Vec<u8>>,
    root: Node,
}

enum Node {
    Or(Vec<Node>),
    And(Vec<Node>),
    Not(Box<Node>),
    Constant(Truth),
    Lone(usize),
    Null(usize, bool),
    In(usize, Vec<Vec<u8>>, bool),
    Text(usize, Word, Vec<u8>, bool),
    SameText(usize, Vec<u8>, bool),
    SameProperty(usize, usize, bool),
    SameBoolean(usize, bool, bool),
    SameInteger(usize, i64, bool),
    SameFloating(usize, f64, bool),
    IntegerOrder(Mark, Side<i64>, Side<i64>),
    FloatingOrder(Mark, Side<f64>, Side<f64>),
}

enum Word {
    Contains,
    StartsWith,
    EndsWith,
}

#[derive(Clone, Copy)]
enum Mark {
    Less,
    LessOrEqual,
    More,
    MoreOrEqual,
}

enum Side<T> {
    Property(usize),
    Number(T),
}

/// This code cannot evaluate the record: Python must.
pub struct Unknown;

impl Filter {
    /// Read a program. None for one that is too large for this.
    pub fn load(program: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let (names, root) = program.extract::<(Vec<Vec<u8>>, Bound<'_, PyTuple>)>()?;
        if names.len() > NAMES_MAX {
            return Ok(None);
        }
        let root = Node::load(&root, names.len(), 0)?;
        Ok(Some(Self { names, root }))
    }

    /// Whether the expression is TRUE for a whole stored record.
    pub fn accepts(&self, record: &[u8]) -> Result<bool, Unknown> {
        let flags = *record.get(SYS_FLAG_AT + 3).ok_or(Unknown)?;
        let longer = usize::from(i64::from(flags) & BORN_HOST_V6 != 0) + usize::from(i64::from(flags) & STORE_HOST_V6 != 0);
        let body_at = HEAD_BYTES + longer * LONGER_ADDRESS_BYTES;
        let size = record.get(body_at - 4..).and_then(|rest| rest.first_chunk::<4>()).ok_or(Unknown)?;
        let topic_at = (u32::from_be_bytes(*size) as usize).checked_add(body_at).ok_or(Unknown)?;
        let rest = record.get(topic_at..).ok_or(Unknown)?;
        let text_at = match (record[MAGIC_AT..MAGIC_AT + 4] == MAGIC_V2.to_be_bytes(), rest) {
            (true, [high, low, ..]) => 2 + usize::from(u16::from_be_bytes([*high, *low])) + 2,
            (false, [length, ..]) if record[MAGIC_AT..MAGIC_AT + 4] == MAGIC_V1.to_be_bytes() => 1 + usize::from(*length) + 2,
            _ => return Err(Unknown),
        };
        let text = rest.get(text_at..).ok_or(Unknown)?;
        let mut values = [None; NAMES_MAX];
        self.find(text, &mut values);
        Ok(self.root.truth(&values)? == Some(true))
    }

    /// The value of each name: the last pair of the name whose value is not empty.
    fn find<'t>(&self, text: &'t [u8], values: &mut [Option<&'t [u8]>; NAMES_MAX]) {
        let mut rest = text;
        while !rest.is_empty() {
            let end = position(rest, 2).unwrap_or(rest.len());
            let pair = &rest[..end];
            for (name, value) in self.names.iter().zip(values.iter_mut()) {
                if pair.len() > name.len() + 1 && pair[name.len()] == 1 && pair[..name.len()] == name[..] {
                    *value = Some(&pair[name.len() + 1..]);
                }
            }
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }
}

/// A filter by itself, for tests.
#[pyclass(frozen, module = "aerobee_native")]
pub struct RecordFilter(Filter);

#[pymethods]
impl RecordFilter {
    #[new]
    fn new(program: &Bound<'_, PyAny>) -> PyResult<Self> {
        let filter = Filter::load(program)?;
        filter.map(Self).ok_or_else(|| PyValueError::new_err("this program has too many names"))
    }

    /// Whether a whole record is accepted; None when Python has to look.
    fn accepts(&self, record: &[u8]) -> Option<bool> {
        self.0.accepts(record).ok()
    }
}

impl Node {
    fn load(tuple: &Bound<'_, PyTuple>, names: usize, depth: usize) -> PyResult<Self> {
        if depth > DEPTH_MAX {
            return Err(PyValueError::new_err("a filter program is nested too deeply"));
        }
        let item = |at: usize| tuple.get_item(at);
        let property = |at: usize| -> PyResult<usize> {
            let number: usize = item(at)?.extract()?;
            if number < names { Ok(number) } else { Err(PyValueError::new_err("a filter program names no property")) }
        };
        let flag = |at: usize| item(at)?.extract::<bool>();
        let bytes = |at: usize| item(at)?.extract::<Vec<u8>>();
        let nodes = |at: usize| -> PyResult<Vec<Self>> {
            let list = item(at)?.cast_into::<PyList>()?;
            list.iter().map(|each| Self::load(each.cast::<PyTuple>()?, names, depth + 1)).collect()
        };
        let kind: String = item(0)?.extract()?;
        Ok(match kind.as_str() {
            "or" => Self::Or(nodes(1)?),
            "and" => Self::And(nodes(1)?),
            "not" => Self::Not(Box::new(Self::load(item(1)?.cast::<PyTuple>()?, names, depth + 1)?)),
            "constant" => Self::Constant(item(1)?.extract()?),
            "lone" => Self::Lone(property(1)?),
            "null" => Self::Null(property(1)?, flag(2)?),
            "in" => Self::In(property(1)?, item(2)?.extract()?, flag(3)?),
            "text" => Self::Text(property(1)?, Word::of(&item(2)?.extract::<String>()?)?, bytes(3)?, flag(4)?),
            "same_text" => Self::SameText(property(1)?, bytes(2)?, flag(3)?),
            "same_property" => Self::SameProperty(property(1)?, property(2)?, flag(3)?),
            "same_boolean" => Self::SameBoolean(property(1)?, flag(2)?, flag(3)?),
            "same_integer" => Self::SameInteger(property(1)?, item(2)?.extract()?, flag(3)?),
            "same_floating" => Self::SameFloating(property(1)?, item(2)?.extract()?, flag(3)?),
            "order" => {
                let mark = Mark::of(&item(1)?.extract::<String>()?)?;
                if flag(2)? {
                    Self::IntegerOrder(mark, Side::load(&item(3)?, names)?, Side::load(&item(4)?, names)?)
                } else {
                    Self::FloatingOrder(mark, Side::load(&item(3)?, names)?, Side::load(&item(4)?, names)?)
                }
            }
            _ => return Err(PyValueError::new_err(format!("a filter program holds {kind:?}"))),
        })
    }

    fn truth(&self, values: &[Option<&[u8]>; NAMES_MAX]) -> Result<Truth, Unknown> {
        let of = |number: &usize| values[*number];
        Ok(match self {
            Self::Or(sides) => return joined(sides, values, true),
            Self::And(sides) => return joined(sides, values, false),
            Self::Not(side) => side.truth(values)?.map(|truth| !truth),
            Self::Constant(truth) => *truth,
            Self::Lone(number) => of(number).map(|_| false),
            Self::Null(number, negate) => Some(of(number).is_none() != *negate),
            Self::In(number, texts, negate) => of(number)
                .map(|value| texts.binary_search_by(|text| text.as_slice().cmp(value)).is_ok() != *negate),
            Self::Text(number, word, text, negate) => Some(match of(number) {
                Some(value) if !text.is_empty() => word.holds(value, text) != *negate,
                _ => false,
            }),
            Self::SameText(number, text, negate) => of(number).map(|value| (value == text.as_slice()) != *negate),
            Self::SameProperty(one, other, negate) => {
                of(one).zip(of(other)).map(|(one, other)| (one == other) != *negate)
            }
            Self::SameBoolean(number, wanted, negate) => {
                of(number).map(|value| (value.eq_ignore_ascii_case(b"true") == *wanted) != *negate)
            }
            Self::SameInteger(number, wanted, negate) => of(number)
                .map(|value| integer(value).is_some_and(|found| (found == *wanted) != *negate)),
            Self::SameFloating(number, wanted, negate) => match of(number) {
                None => None,
                Some(value) => Some(floating(value)?.is_some_and(|found| (found == *wanted) != *negate)),
            },
            Self::IntegerOrder(mark, left, right) => match (left.value(values), right.value(values)) {
                (Some(left), Some(right)) => Some(match (left.integer(), right.integer()) {
                    (Some(left), Some(right)) => mark.holds(Some(left.cmp(&right))),
                    _ => false,
                }),
                _ => None,
            },
            Self::FloatingOrder(mark, left, right) => match (left.value(values), right.value(values)) {
                (Some(left), Some(right)) => Some(match (left.floating()?, right.floating()?) {
                    (Some(left), Some(right)) => mark.holds(left.partial_cmp(&right)),
                    _ => false,
                }),
                _ => None,
            },
        })
    }
}

/// OR when `decisive` is true, AND when it is false.
fn joined(sides: &[Node], values: &[Option<&[u8]>; NAMES_MAX], decisive: bool) -> Result<Truth, Unknown> {
    let mut result = Some(!decisive);
    for side in sides {
        match side.truth(values)? {
            Some(truth) if truth == decisive => return Ok(Some(decisive)),
            Some(_) => {}
            None => result = None,
        }
    }
    Ok(result)
}

impl Word {
    fn of(word: &str) -> PyResult<Self> {
        match word {
            "CONTAINS" => Ok(Self::Contains),
            "STARTSWITH" => Ok(Self::StartsWith),
            "ENDSWITH" => Ok(Self::EndsWith),
            _ => Err(PyValueError::new_err(format!("a filter program holds the word {word:?}"))),
        }
    }

    /// `text` is not empty.
    fn holds(&self, value: &[u8], text: &[u8]) -> bool {
        match self {
            Self::Contains => value.windows(text.len()).any(|part| part == text),
            Self::StartsWith => value.starts_with(text),
            Self::EndsWith => value.ends_with(text),
        }
    }
}

impl Mark {
    fn of(mark: &str) -> PyResult<Self> {
        match mark {
            "<" => Ok(Self::Less),
            "<=" => Ok(Self::LessOrEqual),
            ">" => Ok(Self::More),
            ">=" => Ok(Self::MoreOrEqual),
            _ => Err(PyValueError::new_err(format!("a filter program holds the mark {mark:?}"))),
        }
    }

    fn holds(self, order: Option<Ordering>) -> bool {
        let Some(order) = order else { return false };
        match self {
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::More => order.is_gt(),
            Self::MoreOrEqual => order.is_ge(),
        }
    }
}

/// A side of a comparison for one record.
enum Found<'v, T> {
    Text(&'v [u8]),
    Number(T),
}

impl<T: Copy + for<'a, 'py> FromPyObject<'a, 'py>> Side<T> {
    fn load(item: &Bound<'_, PyAny>, names: usize) -> PyResult<Self> {
        if item.is_instance_of::<PyInt>() && !item.is_instance_of::<PyBool>() {
            let number: usize = item.extract()?;
            return if number < names {
                Ok(Self::Property(number))
            } else {
                Err(PyValueError::new_err("a filter program names no property"))
            };
        }
        let number = item.cast::<PyTuple>()?.get_item(0)?;
        match number.extract::<T>() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) => Err(PyValueError::new_err("a filter program holds an odd number")),
        }
    }

    /// None for a missing property.
    fn value<'v>(&self, values: &[Option<&'v [u8]>; NAMES_MAX]) -> Option<Found<'v, T>> {
        match self {
            Self::Property(number) => values[*number].map(Found::Text),
            Self::Number(number) => Some(Found::Number(*number)),
        }
    }
}

impl Found<'_, i64> {
    fn integer(&self) -> Option<i64> {
        match self {
            Self::Text(text) => integer(text),
            Self::Number(number) => Some(*number),
        }
    }
}

impl Found<'_, f64> {
    fn floating(&self) -> Result<Option<f64>, Unknown> {
        match self {
            Self::Text(text) => floating(text),
            Self::Number(number) => Ok(Some(*number)),
        }
    }
}

/// As java.lang.Long.parseLong; None for what it refuses (sql92.to_integer).
fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value: i128 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i128::from(digit - b'0');
        if value > 1 << 64 {
            // Beyond 64 bits for good, if the rest are digits; otherwise it is no number either.
            return None;
        }
    }
    i64::try_from(if negative { -value } else { value }).ok()
}

/// As java.lang.Double.parseDouble without its hexadecimal form (sql92.to_floating); None for what it refuses.
fn floating(text: &[u8]) -> Result<Option<f64>, Unknown> {
    if !text.is_ascii() {
        return Err(Unknown); // there are blanks beyond ASCII
    }
    let is_blank = |byte: &u8| matches!(byte, 9..=13 | 28..=32);
    let start = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(byte)).map_or(start, |at| at + 1);
    let mut number = &text[start..end];
    if let [rest @ .., b'f' | b'F' | b'd' | b'D'] = number {
        number = rest;
    }
    if !is_decimal(number) {
        return Ok(None);
    }
    Ok(std::str::from_utf8(number).ok().and_then(|number| number.parse().ok()))
}

/// [+-]? (digits [. [digits]] | . digits) ([eE] [+-]? digits)?
fn is_decimal(text: &[u8]) -> bool {
    let unsigned = |text: &mut &[u8]| {
        if let [b'+' | b'-', rest @ ..] = *text {
            *text = rest;
        }
    };
    let digits = |text: &mut &[u8]| {
        let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *text = &text[count..];
        count
    };
    let mut rest = text;
    unsigned(&mut rest);
    let whole = digits(&mut rest);
    if let [b'.', behind @ ..] = rest {
        rest = behind;
        if digits(&mut rest) == 0 && whole == 0 {
            return false;
        }
    } else if whole == 0 {
        return false;
    }
    if let [b'e' | b'E', behind @ ..] = rest {
        rest = behind;
        unsigned(&mut rest);
        if digits(&mut rest) == 0 {
            return false;
        }
    }
    rest.is_empty()
}

/// Position of the first occurrence of a byte, eight bytes at a time.
fn position(text: &[u8], wanted: u8) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let pattern = LOW * u64::from(wanted);
    let mut at = 0;
    while let Some(chunk) = text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk) ^ pattern;
        let hits = word.wrapping_sub(LOW) & !word & HIGH;
        if hits != 0 {
            return Some(at + (hits.trailing_zeros() / 8) as usize);
        }
        at += 8;
    }
    text[at..].iter().position(|byte| *byte == wanted).map(|more| at + more)
}
