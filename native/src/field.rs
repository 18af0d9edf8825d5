//! The fields of a request's header that the fast path looks at, whichever header type carried them.

use std::borrow::Cow;
use std::ops::Range;

use crate::constants::{NUMBER_CHARS_MAX, SEND_BACK_EXTRAS};
use crate::json_text::unescape;
use crate::text::append;

/// A value as it stands in the header. Texts are not unescaped before they are needed.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    Missing,
    /// UTF-8, checked. `escaped`: holds JSON escapes, all of them valid.
    Text { raw: &'a [u8], escaped: bool },
    /// A signed 64-bit number; larger ones are `Other`, because no field accepts them.
    Integer(i64),
    Float(f64),
    Bool(bool),
    /// null, an array, an object, an integer beyond 64 bits
    Other,
}

/// Which field; the names of the two send headers, of pulls, of END_TRANSACTION and of CONSUMER_SEND_MSG_BACK, where
/// `SendBackExtra` is any of those that only Aerobee's consumers send (SEND_BACK_EXTRAS).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Name {
    B, E, F, G, H, I, J, M,
    Topic, QueueId, SysFlag, BornTimestamp, Flag, Properties, ReconsumeTimes, Batch,
    ConsumerGroup, QueueOffset, MaxMsgNums, CommitOffset, Subscription, SubVersion, ExpressionType,
    SuspendTimeoutMillis,
    ProducerGroup, TransactionId, TranStateTableOffset, CommitLogOffset, CommitOrRollback,
    Offset, Group, DelayLevel, UnitMode, MaxReconsumeTimes, SendBackExtra,
}

const COUNT: usize = Name::SendBackExtra as usize + 1;

impl Name {
    #[inline]
    pub fn of_letter(letter: u8) -> Option<Self> {
        use Name::{B, E, F, G, H, I, J, M};
        match letter {
            b'b' => Some(B), b'e' => Some(E), b'f' => Some(F), b'g' => Some(G),
            b'h' => Some(H), b'i' => Some(I), b'j' => Some(J), b'm' => Some(M),
            _ => None,
        }
    }

    #[inline]
    pub fn of(name: &[u8]) -> Option<Self> {
        use Name::{
            Batch, BornTimestamp, CommitLogOffset, CommitOffset, CommitOrRollback, ConsumerGroup, DelayLevel, ExpressionType,
            Flag, Group, MaxMsgNums, MaxReconsumeTimes, Offset, ProducerGroup, Properties, QueueId, QueueOffset,
            ReconsumeTimes, SendBackExtra, SubVersion, Subscription, SuspendTimeoutMillis, SysFlag, Topic,
            TranStateTableOffset, TransactionId, UnitMode,
        };
        if let [letter] = name {
            return Self::of_letter(*letter);
        }
        match name {
            b"topic" => Some(Topic), b"queueId" => Some(QueueId), b"sysFlag" => Some(SysFlag),
            b"bornTimestamp" => Some(BornTimestamp), b"flag" => Some(Flag), b"properties" => Some(Properties),
            b"reconsumeTimes" => Some(ReconsumeTimes), b"batch" => Some(Batch),
            b"consumerGroup" => Some(ConsumerGroup), b"queueOffset" => Some(QueueOffset),
            b"maxMsgNums" => Some(MaxMsgNums), b"commitOffset" => Some(CommitOffset),
            b"subscription" => Some(Subscription), b"subVersion" => Some(SubVersion),
            b"expressionType" => Some(ExpressionType), b"suspendTimeoutMillis" => Some(SuspendTimeoutMillis),
            b"producerGroup" => Some(ProducerGroup), b"transactionId" => Some(TransactionId),
            b"tranStateTableOffset" => Some(TranStateTableOffset), b"commitLogOffset" => Some(CommitLogOffset),
            b"commitOrRollback" => Some(CommitOrRollback),
            b"offset" => Some(Offset), b"group" => Some(Group), b"delayLevel" => Some(DelayLevel),
            b"unitMode" => Some(UnitMode), b"maxReconsumeTimes" => Some(MaxReconsumeTimes),
            _ if SEND_BACK_EXTRAS.iter().any(|extra| extra.as_bytes() == name) => Some(SendBackExtra),
            _ => None,
        }
    }
}

/// Takes the fields of a header in their order.
pub trait FieldSink<'a> {
    /// The results of this header are void.
    fn clear_header(&mut self);

    /// A field whose name is one of `a` to `z`.
    fn take_short(&mut self, name: u8, value: Value<'a>);

    /// Any field; `known` is what its name is known as.
    fn take(&mut self, name: &[u8], known: Option<Name>, value: Value<'a>);
}

/// The fields of one header; a later value of a name replaces an earlier one.
pub struct Fields<'a> {
    known: [Value<'a>; COUNT],
}

/// All fields of some headers in their order, those of equal names, too.
pub struct AllFields<'a> {
    /// A name of one character, `a` to `z`, is itself; another name stands behind its length: headers have the same names in the same order
    /// when these bytes are the same.
    names: Vec<u8>,
    values: Vec<Value<'a>>,
    /// Start of the last header's names.
    begin: (usize, usize),
}

/// Range of one header's fields.
#[derive(Clone, Default)]
pub struct Kept {
    names: Range<usize>,
    values: Range<usize>,
}

const LONG_NAME: u8 = u8::MAX; // instead of a length that is not below the codes of `a` to `z`: it follows in eight bytes
/// Bounds of the memory that `AllFields` keep.
const NAME_BYTES_KEPT: usize = 1 << 14;
const VALUES_KEPT: usize = 1 << 11;

impl<'a> Fields<'a> {
    pub fn new() -> Self {
        Self { known: [Value::Missing; COUNT] }
    }

    #[inline]
    pub fn set(&mut self, name: Name, value: Value<'a>) {
        self.known[name as usize] = value;
    }

    #[inline]
    pub fn get(&self, name: Name) -> Value<'a> {
        self.known[name as usize]
    }
}

impl<'a> FieldSink<'a> for Fields<'a> {
    fn clear_header(&mut self) {
        self.known = [Value::Missing; COUNT];
    }

    #[inline(always)]
    fn take_short(&mut self, name: u8, value: Value<'a>) {
        if let Some(known) = Name::of_letter(name) {
            self.set(known, value);
        }
    }

    #[inline(always)]
    fn take(&mut self, _: &[u8], known: Option<Name>, value: Value<'a>) {
        if let Some(known) = known {
            self.set(known, value);
        }
    }
}

impl<'a> AllFields<'a> {
    pub fn new() -> Self {
        Self { names: Vec::new(), values: Vec::new(), begin: (0, 0) }
    }

    /// None, with the memory of these.
    pub fn emptied<'b>(mut self) -> AllFields<'b> {
        self.clear();
        self.names.shrink_to(NAME_BYTES_KEPT);
        self.values.shrink_to(VALUES_KEPT);
        AllFields { names: self.names, values: emptied(self.values), begin: (0, 0) }
    }

    pub fn clear(&mut self) {
        self.names.clear();
        self.values.clear();
        self.begin = (0, 0);
    }

    /// A header is at its end: where its fields stand.
    pub fn end_header(&mut self) -> Kept {
        let end = (self.names.len(), self.values.len());
        let kept = Kept { names: self.begin.0..end.0, values: self.begin.1..end.1 };
        self.begin = end;
        kept
    }

    /// The names of one header, in one text.
    pub fn names(&self, kept: &Kept) -> &[u8] {
        &self.names[kept.names.clone()]
    }

    pub fn values(&self, kept: &Kept) -> &[Value<'a>] {
        &self.values[kept.values.clone()]
    }
}

impl<'a> FieldSink<'a> for AllFields<'a> {
    fn clear_header(&mut self) {
        self.names.truncate(self.begin.0);
        self.values.truncate(self.begin.1);
    }

    #[inline(always)]
    fn take_short(&mut self, name: u8, value: Value<'a>) {
        self.names.push(name);
        self.values.push(value);
    }

    fn take(&mut self, name: &[u8], _: Option<Name>, value: Value<'a>) {
        match name {
            [letter @ b'a'..=b'z'] => self.names.push(*letter),
            _ if name.len() < usize::from(b'a') => {
                self.names.push(name.len() as u8);
                append(&mut self.names, name);
            }
            _ => {
                self.names.push(LONG_NAME);
                self.names.extend_from_slice(&(name.len() as u64).to_le_bytes());
                self.names.extend_from_slice(name);
            }
        }
        self.values.push(value);
    }
}

/// Reuse this vector's memory as an empty vector for items of another lifetime with the same layout.
pub fn emptied<T, U>(mut items: Vec<T>) -> Vec<U> {
    items.clear();
    items.into_iter().map(|_| unreachable!()).collect()
}

/// The single names of `AllFields::names`.
pub fn split_names(mut names: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some((short, mut rest)) = names.split_first() {
        if short.is_ascii_lowercase() {
            found.push(&names[..1]);
            names = rest;
            continue;
        }
        let mut length = usize::from(*short);
        if *short == LONG_NAME {
            let Some((long, behind)) = rest.split_first_chunk() else { break };
            (length, rest) = (u64::from_le_bytes(*long) as usize, behind);
        }
        let Some((name, behind)) = rest.split_at_checked(length) else { break };
        found.push(name);
        names = behind;
    }
    found
}

impl<'a> Value<'a> {
    pub fn is_missing(&self) -> bool {
        matches!(self, Value::Missing)
    }

    /// The text as it stands in the header, with its escapes; None when it is no text.
    pub fn raw(&self) -> Option<&'a [u8]> {
        match *self {
            Value::Text { raw, .. } => Some(raw),
            _ => None,
        }
    }

    /// The text's bytes, None when it is no text.
    pub fn text(&self) -> Option<Cow<'a, [u8]>> {
        match *self {
            Value::Text { raw, escaped: false } => Some(Cow::Borrowed(raw)),
            Value::Text { raw, escaped: true } => {
                let mut out = Vec::with_capacity(raw.len());
                unescape(raw, &mut out);
                Some(Cow::Owned(out))
            }
            _ => None,
        }
    }

    /// Put the text's bytes into `out`, or return false when it is no text.
    pub fn text_into(&self, out: &mut Vec<u8>) -> bool {
        out.clear();
        match *self {
            Value::Text { raw, escaped } => {
                if escaped { unescape(raw, out) } else { out.extend_from_slice(raw) }
                true
            }
            _ => false,
        }
    }

    /// As number() of fastpath/pull.py: a 64-bit JSON integer, or at most 20 digits as text.
    pub fn number(&self) -> Option<i64> {
        match self {
            Value::Integer(value) => Some(*value),
            Value::Text { .. } => number_of(&self.text()?),
            _ => None,
        }
    }

    /// As `number`, where the Python backend takes the text "0" without looking further.
    pub fn small(&self) -> Option<i64> {
        match self {
            Value::Text { raw: b"0", .. } => Some(0),
            _ => self.number(),
        }
    }

    /// A born timestamp: text only; nineteen digits may be beyond 64 bits, which laying out the record refuses.
    pub fn born_timestamp(&self) -> Option<i128> {
        let text = self.text()?;
        if !text.is_empty() && text.len() < 20 && text.iter().all(u8::is_ascii_digit) {
            return Some(digits(&text));
        }
        number_of(&text).map(i128::from)
    }

    /// Whether the field `batch` denies a batch: "false", "0", 0 or false.
    pub fn is_no_batch(&self) -> bool {
        match self {
            Value::Text { .. } => self.text().is_some_and(|text| matches!(&*text, b"false" | b"0")),
            Value::Integer(value) => *value == 0,
            Value::Float(value) => *value == 0.0,
            Value::Bool(value) => !value,
            Value::Missing | Value::Other => false,
        }
    }
}

/// An integer written in at most 20 characters, with a minus or not, of 64 bits.
fn number_of(text: &[u8]) -> Option<i64> {
    if text.len() > NUMBER_CHARS_MAX {
        return None;
    }
    let (negative, rest) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if rest.is_empty() || !rest.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits(rest);
    i64::try_from(if negative { -value } else { value }).ok()
}

/// At most 20 digits as a number.
fn digits(text: &[u8]) -> i128 {
    if text.len() < 20 {
        return text.iter().fold(0_u64, |value, digit| value * 10 + u64::from(digit - b'0')).into();
    }
    text.iter().fold(0, |value, digit| value * 10 + i128::from(digit - b'0'))
}
