//! Reads the fields of an encoded protobuf message, those alone whose meaning is the same for every reader.
//!
//!     varint (number << 3 | type) | type 0: varint, type 2: varint length, bytes
//!
//! Readers take a key or a length of more than five bytes or refuse it: here it is malformed. Nothing is copied, and no work is done for bytes that are not there.

const SHORT_VARINT_BYTES_MAX: usize = 5;

/// The value of one field.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    pub fn bytes(self) -> Option<&'a [u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    pub fn text(self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    /// A number that an int32 and an enum can have and that is not negative.
    pub fn small(self) -> Option<i32> {
        if let Self::Number(number) = self { i32::try_from(number).ok() } else { None }
    }

    /// The same of an int64.
    pub fn large(self) -> Option<i64> {
        if let Self::Number(number) = self { i64::try_from(number).ok() } else { None }
    }
}

/// Hand each field to `take`, in their order. None: the bytes are malformed, a field has another type, or `take` says so.
pub fn read<'a>(mut rest: &'a [u8], mut take: impl FnMut(u32, Value<'a>) -> Option<()>) -> Option<()> {
    while !rest.is_empty() {
        let key = short_varint(&mut rest)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut rest)?),
            2 => {
                let length = usize::try_from(short_varint(&mut rest)?).ok()?;
                let (bytes, behind) = rest.split_at_checked(length)?;
                rest = behind;
                Value::Bytes(bytes)
            }
            _ => return None,
        };
        take(key >> 3, value)?;
    }
    Some(())
}

/// Keep the value of a field that may occur once.
pub fn keep<T>(kept: &mut Option<T>, value: T) -> Option<()> {
    if kept.replace(value).is_some() { None } else { Some(()) }
}

fn short_varint(rest: &mut &[u8]) -> Option<u32> {
    let before = rest.len();
    let number = u32::try_from(varint(rest)?).ok()?;
    (before - rest.len() <= SHORT_VARINT_BYTES_MAX).then_some(number)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        // The tenth byte has one bit.
        if shift == 63 && byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Append a number, seven bits a byte.
pub fn write_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Append a field of bytes.
pub fn write_bytes(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}
