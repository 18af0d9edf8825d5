//! Signatures of frames: HMAC-SHA1 (RFC 2104), of many frames at once, as Base64. aerobee/remoting/signature.py says over what.
//!
//! Of a secret only the two states are kept that every signature with it begins with.

use sha1::{Digest, Sha1};

use crate::sha1_lanes::{BLOCK_BYTES, LANES, START, State, Text, hash};

pub const SIGNATURE_CHARS: usize = 28;
/// A longer body is hashed where it stands.
const COPIED_BYTES_MAX: usize = 16 * 1024;
const DIGEST_BYTES: usize = 20;

/// What signs.
#[derive(Clone, Copy)]
pub struct Key {
    inner: State,
    outer: State,
}

impl Key {
    pub fn new(secret: &[u8]) -> Self {
        let mut block = [0; BLOCK_BYTES];
        if secret.len() > BLOCK_BYTES {
            block[..DIGEST_BYTES].copy_from_slice(&Sha1::digest(secret));
        } else {
            block[..secret.len()].copy_from_slice(secret);
        }
        let state = |pad: u8| {
            let mut texts = [Text { state: START, blocks: &[block.map(|byte| byte ^ pad)] }];
            hash(&mut texts);
            texts[0].state
        };
        Self { inner: state(0x36), outer: state(0x5C) }
    }
}

/// What signatures are over, one content behind the other, each in whole blocks with SHA-1's padding.
#[derive(Default)]
pub struct Contents {
    bytes: Vec<u8>,
    begins: usize,
}

/// A signature that is wanted: the key, and where the content stands.
pub struct Wanted {
    key: Key,
    start: usize,
    end: usize,
}

impl Contents {
    /// Forget all; keep memory for so many bytes.
    pub fn clear(&mut self, kept_bytes: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept_bytes);
        self.begins = 0;
    }

    /// Begin a content of at most so many bytes. What was written of the last one is gone if it was not ended.
    pub fn begin(&mut self, bytes_max: usize) -> &mut Vec<u8> {
        self.bytes.truncate(self.begins);
        self.bytes.reserve(bytes_max + 2 * BLOCK_BYTES);
        &mut self.bytes
    }

    /// End it with a body; returns the key as it is after what needs no place here, which is most of a long body.
    pub fn end(&mut self, mut key: Key, mut body: &[u8]) -> Wanted {
        let start = self.begins;
        // The hash began with a block of the key.
        let bits = 8 * (BLOCK_BYTES + self.bytes.len() - start + body.len()) as u64;
        if body.len() > COPIED_BYTES_MAX {
            let (head, rest) = body.split_at((self.bytes.len() - start).next_multiple_of(BLOCK_BYTES) + start - self.bytes.len());
            self.bytes.extend_from_slice(head);
            let (blocks, tail) = rest.as_chunks();
            for blocks in [self.bytes[start..].as_chunks().0, blocks] {
                let mut texts = [Text { state: key.inner, blocks }];
                hash(&mut texts);
                key.inner = texts[0].state;
            }
            self.bytes.truncate(start);
            body = tail;
        }
        self.bytes.extend_from_slice(body);
        self.bytes.push(0x80);
        let end = (self.bytes.len() + 8).next_multiple_of(BLOCK_BYTES);
        self.bytes.resize(end - 8, 0);
        self.bytes.extend_from_slice(&bits.to_be_bytes());
        self.begins = end;
        Wanted { key, start, end }
    }

    /// The signatures of so many contents, at most `LANES`, side by side: in the order of `wanted`.
    pub fn signatures(&self, wanted: &[Wanted]) -> [[u8; SIGNATURE_CHARS]; LANES] {
        let mut texts = [Text { state: START, blocks: &[] }; LANES];
        let texts = &mut texts[..wanted.len()];
        for (text, Wanted { key, start, end }) in texts.iter_mut().zip(wanted) {
            *text = Text { state: key.inner, blocks: self.bytes[*start..*end].as_chunks().0 };
        }
        hash(texts);
        let mut digests = [[[0; BLOCK_BYTES]]; LANES];
        for (digest, text) in digests.iter_mut().zip(&*texts) {
            put_digest(&mut digest[0], text.state);
            digest[0][DIGEST_BYTES] = 0x80;
            digest[0][BLOCK_BYTES - 8..].copy_from_slice(&(8 * (BLOCK_BYTES + DIGEST_BYTES) as u64).to_be_bytes());
        }
        for ((text, Wanted { key, .. }), digest) in texts.iter_mut().zip(wanted).zip(&digests) {
            *text = Text { state: key.outer, blocks: digest };
        }
        hash(texts);
        let mut signatures = [[b'='; SIGNATURE_CHARS]; LANES];
        for (signature, text) in signatures.iter_mut().zip(&*texts) {
            let mut digest = [0; DIGEST_BYTES + 1];
            put_digest(&mut digest, text.state);
            put_base64(signature, &digest);
        }
        signatures
    }
}

fn put_digest(out: &mut [u8], state: State) {
    for (bytes, word) in out.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
}

/// A digest with a 0 behind it as Base64; the last character stands for nothing.
fn put_base64(out: &mut [u8; SIGNATURE_CHARS], digest: &[u8; DIGEST_BYTES + 1]) {
    for (four, three) in out.chunks_exact_mut(4).zip(digest.chunks_exact(3)) {
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for (digit, char) in four.iter_mut().enumerate() {
            *char = (bits >> (18 - 6 * digit)) as u8 & 63;
        }
    }
    // From the alphabet's ranges, for all at once: A to Z, a to z, 0 to 9, +, /.
    for char in out.iter_mut() {
        let digit = *char;
        let mut shift = b'A';
        shift = if digit > 25 { b'a' - 26 } else { shift };
        shift = if digit > 51 { b'0'.wrapping_sub(52) } else { shift };
        shift = if digit > 61 { b'+'.wrapping_sub(62) } else { shift };
        shift = if digit > 62 { b'/'.wrapping_sub(63) } else { shift };
        *char = digit.wrapping_add(shift);
    }
    out[SIGNATURE_CHARS - 1] = b'=';
}

/// Takes as long for texts that differ in their first byte as for equal ones.
pub fn is_equal(given: &[u8], expected: &[u8; SIGNATURE_CHARS]) -> bool {
    given.len() == expected.len()
        && std::hint::black_box(given.iter().zip(expected).fold(0, |all, (left, right)| all | (left ^ right))) == 0
}
