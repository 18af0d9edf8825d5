//! Texts of header blocks in HPACK's Huffman code. Source: RFC 7541, 5.2 and appendix B.
//!
//! The code is canonical: codes of one length count up in the order of their symbols, so that the lengths alone define it.

use std::sync::OnceLock;

/// Bits of each symbol's code; the last one is the end of a text, which must not be in it.
const CODE_BITS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
    30,
];
const END_OF_TEXT: u16 = 256;
const CODE_BITS_MAX: usize = 30;
const SHORT_BITS: u32 = 8; // shorter codes are looked up, which are nearly all that clients send
const PADDING_BITS_MAX: u32 = 7;

struct Codes {
    /// By the next SHORT_BITS bits: symbol and bits of its code; 0 bits: the code is longer.
    short: [(u8, u8); 1 << SHORT_BITS],
    /// By length: the first code, and where its symbols begin in `symbols`.
    first: [u32; CODE_BITS_MAX + 2],
    start: [usize; CODE_BITS_MAX + 2],
    symbols: Vec<u16>, // by length, then by symbol
}

fn codes() -> &'static Codes {
    static CODES: OnceLock<Codes> = OnceLock::new();
    CODES.get_or_init(|| {
        let mut made = Codes {
            short: [(0, 0); 1 << SHORT_BITS],
            first: [0; CODE_BITS_MAX + 2],
            start: [0; CODE_BITS_MAX + 2],
            symbols: Vec::with_capacity(CODE_BITS.len()),
        };
        let mut code = 0u32;
        for bits in 1..=CODE_BITS_MAX {
            code <<= 1;
            made.first[bits] = code;
            made.start[bits] = made.symbols.len();
            for (symbol, _) in (0u16..).zip(CODE_BITS).filter(|&(_, found)| usize::from(found) == bits) {
                if bits <= SHORT_BITS as usize {
                    let spare = SHORT_BITS as usize - bits;
                    let from = (code as usize) << spare;
                    made.short[from..from + (1 << spare)].fill((symbol as u8, bits as u8));
                }
                made.symbols.push(symbol);
                code += 1;
            }
        }
        made.start[CODE_BITS_MAX + 1] = made.symbols.len();
        made
    })
}

/// The text of `data`, appended to `found`; false when it is no such text. At most 8 / 5 as long.
pub fn decode(data: &[u8], found: &mut Vec<u8>) -> bool {
    let codes = codes();
    let mut bits: u64 = 0; // the lowest `count` bits are to be decoded
    let mut count: u32 = 0;
    let mut rest = data.iter();
    loop {
        while count <= 56 {
            let Some(&byte) = rest.next() else { break };
            bits = bits << 8 | u64::from(byte);
            count += 8;
        }
        if count < SHORT_BITS {
            break;
        }
        let (symbol, length) = codes.short[(bits >> (count - SHORT_BITS)) as usize & ((1 << SHORT_BITS) - 1)];
        if length > 0 {
            found.push(symbol);
            count -= u32::from(length);
        } else if !long(codes, bits, &mut count, found) {
            return false;
        }
    }
    // What remains is shorter than SHORT_BITS bits: codes, then padding of ones.
    while count > 0 {
        let left = bits & ((1 << count) - 1);
        let (symbol, length) = codes.short[(left << (SHORT_BITS - count)) as usize];
        if length > 0 && u32::from(length) <= count {
            found.push(symbol);
            count -= u32::from(length);
        } else {
            return count <= PADDING_BITS_MAX && left == (1 << count) - 1;
        }
    }
    true
}

/// Decode one code of more than SHORT_BITS bits; false when there is none.
fn long(codes: &Codes, bits: u64, count: &mut u32, found: &mut Vec<u8>) -> bool {
    for length in SHORT_BITS as usize + 1..=CODE_BITS_MAX.min(*count as usize) {
        let code = (bits >> (*count as usize - length)) as u32 & ((1 << length) - 1);
        let here = codes.start[length + 1] - codes.start[length];
        let at = code.wrapping_sub(codes.first[length]) as usize;
        if at < here {
            let symbol = codes.symbols[codes.start[length] + at];
            *count -= length as u32;
            found.push(symbol as u8);
            return symbol != END_OF_TEXT;
        }
    }
    false
}
