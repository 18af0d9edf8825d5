//! JSON texts: finds the end of a run without escapes, and decodes escapes.

use crate::text::append;

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Append the decoded text of `raw`. Its escapes were checked when it was read.
pub fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    out.reserve(raw.len());
    let mut at = 0;
    while at < raw.len() {
        let end = backslash(raw, at);
        append(out, &raw[at..end]);
        at = end;
        let Some(escape) = raw.get(at + 1) else { break };
        at += 2;
        let simple = match escape {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                // Property separators are checked first, because each message has some.
                let mut unit = match raw.get(at..at + 4) {
                    Some(b"0001") => 1,
                    Some(b"0002") => 2,
                    _ => hex4(raw, at).unwrap_or(0xFFFD),
                };
                at += 4;
                if unit < 0x80 {
                    out.push(unit as u8);
                    continue;
                }
                if (0xD800..0xDC00).contains(&unit) {
                    let low = hex4(raw, at + 2).unwrap_or(0xDC00);
                    unit = 0x10000 + ((unit - 0xD800) << 10) + (low & 0x3FF);
                    at += 6;
                }
                let mut buffer = [0; 4];
                let text = char::from_u32(unit).unwrap_or('\u{FFFD}').encode_utf8(&mut buffer);
                out.extend_from_slice(text.as_bytes());
                continue;
            }
            other => *other, // a quote, a backslash, a slash
        };
        out.push(simple);
    }
}

/// The first position from `at` on with a backslash; the end when there is none.
fn backslash(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*chunk) ^ (ONES * u64::from(b'\\'));
        // The lowest byte flagged is exact: borrows only spoil the ones above it.
        let found = word.wrapping_sub(ONES) & !word & HIGHS;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bytes.len() && bytes[at] != b'\\' {
        at += 1;
    }
    at
}

/// Four hexadecimal digits at `at` as a number.
pub fn hex4(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 4)?;
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | (*digit as char).to_digit(16)?))
}

/// The first position from `at` on with a quote, a backslash or a control character; the end when there is none.
#[inline]
pub fn plain_until(bytes: &[u8], mut at: usize) -> usize {
    while let Some(chunk) = bytes.get(at..at + 8) {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        // The lowest byte flagged by these is exact: borrows only spoil the ones above it.
        let found = (quote.wrapping_sub(ONES) & !quote
            | backslash.wrapping_sub(ONES) & !backslash
            | word.wrapping_sub(ONES * 0x20) & !word)
            & HIGHS;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < bytes.len() && !matches!(bytes[at], b'"' | b'\\' | 0..=0x1F) {
        at += 1;
    }
    at
}
