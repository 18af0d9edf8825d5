//! The JSON header: one pass over the bytes, nothing built but the fields that the fast path needs.
//!
//! Takes and refuses exactly what the reference implementation's parser does (orjson): RFC 8259, no byte order mark, no lone
//! surrogates, no number that is infinite as a double, at most 1024 nested containers; of equal names the last counts.

use crate::field::{FieldSink, Name, Value};
use crate::json_text::{hex4, plain_until};

const DEPTH_MAX: usize = 1024;

/// Contents of a header other than its fields.
pub struct JsonHeader<'a> {
    pub code: Value<'a>,
    pub flag: Value<'a>,
    pub opaque: Value<'a>,
    pub version: Value<'a>,
    /// Whether `extFields` exists and is an object.
    pub has_fields: bool,
}

/// Read a whole header and its fields, or return None for text that is not JSON or not an object.
pub fn parse<'a>(header: &'a [u8], fields: &mut impl FieldSink<'a>) -> Option<JsonHeader<'a>> {
    std::str::from_utf8(header).ok()?;
    let mut reader = Reader { bytes: header, at: 0 };
    let mut found =
        JsonHeader {
            code: Value::Missing,
            flag: Value::Missing,
            opaque: Value::Missing,
            version: Value::Missing,
            has_fields: false,
        };
    reader.skip_space();
    if reader.next()? != b'{' {
        return None;
    }
    reader.skip_space();
    if reader.peek()? == b'}' {
        reader.at += 1;
    } else {
        loop {
            let name = reader.name()?;
            match &*name {
                b"extFields" => {
                    fields.clear_header(); // of equal names the last counts
                    reader.skip_space();
                    found.has_fields = reader.peek()? == b'{';
                    if found.has_fields {
                        reader.fields(fields)?;
                    } else {
                        reader.value(1)?;
                    }
                }
                b"code" => found.code = reader.value(1)?,
                b"flag" => found.flag = reader.value(1)?,
                b"opaque" => found.opaque = reader.value(1)?,
                b"version" => found.version = reader.value(1)?,
                _ => {
                    reader.value(1)?;
                }
            }
            if !reader.goes_on(b'}')? {
                break;
            }
        }
    }
    reader.skip_space();
    (reader.at == header.len()).then_some(found)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A name, borrowed unless it held escapes.
type Text<'a> = std::borrow::Cow<'a, [u8]>;

impl<'a> Reader<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    #[inline]
    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// After a member or element: true when another one follows, false when the container ended.
    #[inline]
    fn goes_on(&mut self, close: u8) -> Option<bool> {
        self.skip_space();
        match self.next()? {
            b',' => Some(true),
            byte if byte == close => Some(false),
            _ => None,
        }
    }

    /// A member's name and the colon behind it.
    fn name(&mut self) -> Option<Text<'a>> {
        self.skip_space();
        if self.next()? != b'"' {
            return None;
        }
        // Most names have one character; a quote behind a byte that is no special one closes it.
        let name = match self.bytes.get(self.at..self.at + 2) {
            Some([b'a'..=b'z', b'"']) => {
                self.at += 2;
                Text::Borrowed(&self.bytes[self.at - 2..self.at - 1])
            }
            _ => match self.string()? {
                Value::Text { raw, escaped: false } => Text::Borrowed(raw),
                escaped => escaped.text()?,
            },
        };
        self.skip_space();
        (self.next()? == b':').then_some(name)
    }

    /// The object `extFields`, at its brace.
    fn fields(&mut self, fields: &mut impl FieldSink<'a>) -> Option<()> {
        self.at += 1;
        self.skip_space();
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            // Fast path for the form of nearly every field of a send: `"x":"text"`.
            if let Some([b'"', name @ b'a'..=b'z', b'"', b':', b'"']) = self.bytes.get(self.at..self.at + 5) {
                self.at += 5;
                let value = self.string()?;
                fields.take_short(*name, value);
            } else {
                let name = self.name()?;
                let value = self.value(2)?;
                fields.take(&name, Name::of(&name), value);
            }
            if self.peek() == Some(b',') {
                self.at += 1;
            } else if !self.goes_on(b'}')? {
                return Some(());
            }
        }
    }

    /// Any value; `depth` containers are open around it.
    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        self.skip_space();
        match self.peek()? {
            b'"' => {
                self.at += 1;
                self.string()
            }
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true", Value::Bool(true)),
            b'f' => self.literal(b"false", Value::Bool(false)),
            b'n' => self.literal(b"null", Value::Other),
            b'{' | b'[' => {
                self.container(depth)?;
                Some(Value::Other)
            }
            _ => None,
        }
    }

    fn literal(&mut self, text: &[u8], value: Value<'a>) -> Option<Value<'a>> {
        if !self.bytes[self.at..].starts_with(text) {
            return None;
        }
        self.at += text.len();
        Some(value)
    }

    /// An array or object that no handler needs: checked without recursion, so that depth costs no stack.
    fn container(&mut self, depth: usize) -> Option<()> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            // At a value.
            self.skip_space();
            match self.peek()? {
                byte @ (b'{' | b'[') => {
                    let close = if byte == b'{' { b'}' } else { b']' };
                    if depth + open.len() >= DEPTH_MAX {
                        return None;
                    }
                    self.at += 1;
                    self.skip_space();
                    if self.peek()? == close {
                        self.at += 1;
                    } else {
                        open.push(close);
                        if close == b'}' {
                            self.name()?;
                        }
                        continue;
                    }
                }
                _ => {
                    self.value(depth)?;
                }
            }
            // After a value: continue with the next one, or close containers.
            loop {
                let Some(close) = open.last().copied() else { return Some(()) };
                if self.goes_on(close)? {
                    if close == b'}' {
                        self.name()?;
                    }
                    break;
                }
                open.pop();
            }
        }
    }

    /// A string, behind its opening quote; its escapes are checked.
    fn string(&mut self) -> Option<Value<'a>> {
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at = plain_until(self.bytes, self.at);
            match self.next()? {
                b'"' => {
                    return Some(Value::Text { raw: &self.bytes[start..self.at - 1], escaped });
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return None, // a control character
            }
        }
    }

    /// Called after a backslash.
    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                if matches!(self.bytes.get(self.at..self.at + 4), Some(b"0001" | b"0002")) {
                    self.at += 4;
                    return Some(());
                }
                let unit = hex4(self.bytes, self.at)?;
                self.at += 4;
                match unit {
                    0xD800..0xDC00 => {
                        if self.next()? != b'\\' || self.next()? != b'u' {
                            return None;
                        }
                        let low = hex4(self.bytes, self.at)?;
                        self.at += 4;
                        (0xDC00..0xE000).contains(&low).then_some(())
                    }
                    0xDC00..0xE000 => None,
                    _ => Some(()),
                }
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value<'a>> {
        let start = self.at;
        let negative = self.peek()? == b'-';
        if negative {
            self.at += 1;
        }
        let first = self.at;
        match self.next()? {
            b'0' => {
                if matches!(self.peek(), Some(b'0'..=b'9')) {
                    return None;
                }
            }
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        let digits = self.at - first;
        let mut is_integer = true;
        if self.peek() == Some(b'.') {
            is_integer = false;
            self.at += 1;
            self.expect_digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            is_integer = false;
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.expect_digits()?;
        }
        if is_integer && digits <= 18 {
            let magnitude =
                self.bytes[first..self.at].iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0'));
            return Some(Value::Integer(if negative { -magnitude } else { magnitude }));
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at]).ok()?;
        if is_integer && let Ok(value) = text.parse() {
            return Some(Value::Integer(value));
        }
        // Also called for integers beyond 64 bits: no field accepts them, but the parser must refuse infinite ones.
        let value: f64 = text.parse().ok()?;
        value.is_finite().then_some(Value::Float(value))
    }

    fn skip_digits(&mut self) {
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn expect_digits(&mut self) -> Option<()> {
        let start = self.at;
        self.skip_digits();
        (self.at > start).then_some(())
    }
}
