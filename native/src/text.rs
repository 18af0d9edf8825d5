//! Texts of messages: Java's string hash, and properties as `name \x01 value \x02` again and again.

/// Java's String.hashCode over UTF-16 units, continuing from `hash`. `text` is UTF-8.
pub fn java_hash_from(hash: u32, text: &[u8]) -> u32 {
    if text.is_ascii() {
        // Four characters a step, so that a step waits for one product and not for four.
        let fours = text.chunks_exact(4);
        let rest = fours.remainder();
        let hash = fours.fold(hash, |hash, four| {
            let sum = four.iter().fold(0, |sum, byte| sum * 31 + u32::from(*byte));
            hash.wrapping_mul(31 * 31 * 31 * 31).wrapping_add(sum)
        });
        return rest.iter().fold(hash, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    }
    let text = String::from_utf8_lossy(text);
    text.encode_utf16().fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit)))
}

/// The absolute value of a Java int; that of the smallest one is 0, as RocketMQ's index has it.
pub fn positive(hash: u32) -> i32 {
    (hash as i32).checked_abs().unwrap_or(0)
}

/// Properties of a message that the fast path reads.
#[derive(Default)]
pub struct Properties<'a> {
    pub unique_key: Option<&'a [u8]>,
    pub keys: Option<&'a [u8]>,
    pub tags: Option<&'a [u8]>,
    pub wait: Option<&'a [u8]>,
    /// One of the names is special: the message needs more than storing.
    pub special: bool,
    /// Number of pieces between separators; odd when the last pair is closed.
    pub part_count: usize,
    /// A separator is in the wrong position, or bytes follow the last one, or a value is empty.
    pub is_loose: bool,
}

impl Properties<'_> {
    /// Whether the broker chooses when to answer the sender; WAIT=false requests an immediate answer.
    pub fn waits(&self) -> bool {
        self.wait.is_none_or(|wait| wait.eq_ignore_ascii_case(b"true"))
    }

    /// Whether each pair has its separators and a value: else pieces would be taken for what the message does not have.
    pub fn is_paired(&self) -> bool {
        !self.is_loose
    }
}

/// Read a properties text: pieces between separators of either kind are names and values in turn.
pub fn read_properties<'a>(text: &'a [u8], special: &NameSet) -> Properties<'a> {
    let mut found = Properties::default();
    let mut name: Option<&[u8]> = None;
    let mut start = 0;
    loop {
        let end = separator(&text[start..]).map(|run| start + run);
        let part = &text[start..end.unwrap_or(text.len())];
        found.part_count += 1;
        match name.take() {
            None => name = Some(part),
            Some(_) if part.is_empty() => found.is_loose = true, // handlers leave such a pair out
            Some(name) => match name {
                b"UNIQ_KEY" => found.unique_key = Some(part),
                b"KEYS" => found.keys = Some(part),
                b"TAGS" => found.tags = Some(part),
                b"WAIT" => found.wait = Some(part),
                _ => found.special |= special.has(name),
            },
        }
        let Some(end) = end else {
            // Only a value, or nothing, may end the text.
            found.is_loose |= name.is_some_and(|rest| !rest.is_empty());
            return found;
        };
        found.is_loose |= (text[end] == 1) != name.is_some();
        start = end + 1;
    }
}

/// Position of the first byte 1 or 2; eight bytes per step.
fn separator(text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    // The lowest byte that is zero has its high bit set in the result, and none below it.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    let mut eights = text.chunks_exact(8);
    let mut at = 0;
    for eight in &mut eights {
        let word = eight.try_into().map_or(0, u64::from_le_bytes);
        let found = zeros(word ^ ONES) | zeros(word ^ (2 * ONES));
        if found != 0 {
            return Some(at + found.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    eights.remainder().iter().position(|byte| matches!(byte, 1 | 2)).map(|run| at + run)
}

/// A few names, looked up by their length first.
pub struct NameSet(Vec<Vec<Vec<u8>>>);

impl NameSet {
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut by_length: Vec<Vec<Vec<u8>>> = Vec::new();
        for name in names {
            if by_length.len() <= name.len() {
                by_length.resize(name.len() + 1, Vec::new());
            }
            by_length[name.len()].push(name.into_bytes());
        }
        Self(by_length)
    }

    pub fn has(&self, name: &[u8]) -> bool {
        self.0.get(name.len()).is_some_and(|names| names.iter().any(|known| known == name))
    }
}

/// Whether a text is made of ASCII letters and digits and is not empty.
pub fn is_alphanumeric(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_alphanumeric)
}

/// Append a text that is usually short: up to 32 bytes are copied inline, without a call.
#[inline(always)]
pub fn append(out: &mut Vec<u8>, text: &[u8]) {
    let size = text.len();
    // Two overlapping pieces of equal size cover the text.
    if let (17..=32, Some(first), Some(last)) = (size, text.first_chunk::<16>(), text.last_chunk::<16>()) {
        out.extend_from_slice(first);
        out.truncate(out.len() - (32 - size));
        out.extend_from_slice(last);
    } else if let (8..=16, Some(first), Some(last)) = (size, text.first_chunk::<8>(), text.last_chunk::<8>()) {
        out.extend_from_slice(first);
        out.truncate(out.len() - (16 - size));
        out.extend_from_slice(last);
    } else if let (4..8, Some(first), Some(last)) = (size, text.first_chunk::<4>(), text.last_chunk::<4>()) {
        out.extend_from_slice(first);
        out.truncate(out.len() - (8 - size));
        out.extend_from_slice(last);
    } else if let (..4, [first, ..], [.., last]) = (size, text, text) {
        out.extend_from_slice(&[*first, text[size / 2], *last]);
        out.truncate(out.len() - (3 - size));
    } else {
        out.extend_from_slice(text);
    }
}

/// Append a number as text, without the cost of a formatter.
pub fn write_decimal(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}
