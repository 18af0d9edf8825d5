//! Signatures of frames: HMAC-SHA1 (RFC 2104), of many frames in parallel, as Base64. aerobee/remoting/signature.py says over which bytes.
//!
//! Of a secret only the two hash states are kept with which every one of its signatures begins.

use sha1::{Digest, Sha1};

use crate::sha1_lanes::{BLOCK_BYTES, Block, LANES, START, State, Text, hash};

pub const SIGNATURE_CHARS: usize = 28;
/// A longer body is hashed in place, without a copy.
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

/// The signed bytes, one content behind the other, each in whole blocks with SHA-1's padding.
#[derive(Default)]
pub struct Contents {
    bytes: Vec<u8>,
    begins: usize,
    wanted: Vec<Wanted>,
}

/// A signature to verify: the key, the position of the content, and the given value.
struct Wanted {
    key: Key,
    start: usize,
    end: usize,
    given: State,
}

impl Contents {
    /// Drop all contents; keep memory for at most this many bytes.
    pub fn clear(&mut self, kept_bytes: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept_bytes);
        self.begins = 0;
        self.wanted.clear();
    }

    /// Number of signatures.
    pub fn count(&self) -> usize {
        self.wanted.len()
    }

    /// Begin a content of at most this many bytes. Discards an unfinished content.
    pub fn begin(&mut self, bytes_max: usize) -> &mut Vec<u8> {
        self.bytes.truncate(self.begins);
        self.bytes.reserve(bytes_max + 2 * BLOCK_BYTES);
        &mut self.bytes
    }

    /// End the content with a body, and record its key and the digest to compare.
    pub fn end(&mut self, mut key: Key, given: State, mut body: &[u8]) {
        let start = self.begins;
        // The hash began with a block of the key.
        let bits = 8 * (BLOCK_BYTES + self.bytes.len() - start + body.len()) as u64;
        if body.len() > COPIED_BYTES_MAX {
            // The whole blocks of a long body are hashed directly into the key's state, without a copy.
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
        self.wanted.push(Wanted { key, start, end, given });
    }

    /// Whether each of the contents, at most `LANES`, has the signature that was given.
    pub fn verify(&self) -> impl Iterator<Item = bool> {
        let mut texts = [Text { state: START, blocks: &[] }; LANES];
        let texts = &mut texts[..self.wanted.len()];
        for (text, Wanted { key, start, end, .. }) in texts.iter_mut().zip(&self.wanted) {
            *text = Text { state: key.inner, blocks: self.bytes[*start..*end].as_chunks().0 };
        }
        hash(texts);
        let mut digests = [[OUTER_BLOCK]; LANES];
        for ((text, digest), Wanted { key, .. }) in texts.iter_mut().zip(&mut digests).zip(&self.wanted) {
            for (bytes, word) in digest[0].chunks_exact_mut(4).zip(text.state) {
                bytes.copy_from_slice(&word.to_be_bytes());
            }
            *text = Text { state: key.outer, blocks: digest };
        }
        hash(texts);
        let mut found = [false; LANES];
        for ((is_signed, text), Wanted { given, .. }) in found.iter_mut().zip(texts).zip(&self.wanted) {
            *is_signed = is_equal(&text.state, given);
        }
        found.into_iter().take(self.wanted.len())
    }
}

/// The block behind the outer key: a digest, not filled in yet, and SHA-1's padding.
const OUTER_BLOCK: Block = {
    let mut block = [0; BLOCK_BYTES];
    block[DIGEST_BYTES] = 0x80;
    let [.., high, low] = (8 * (BLOCK_BYTES + DIGEST_BYTES) as u64).to_be_bytes();
    (block[BLOCK_BYTES - 2], block[BLOCK_BYTES - 1]) = (high, low);
    block
};

/// Compare in constant time, wherever the digests differ.
fn is_equal(given: &State, expected: &State) -> bool {
    std::hint::black_box(given.iter().zip(expected).fold(0, |all, (left, right)| all | (left ^ right))) == 0
}

/// The digest of a Base64 signature; None when it is not canonical Base64.
pub fn digest_of(signature: &[u8]) -> Option<State> {
    let mut chars: [u8; SIGNATURE_CHARS] = signature.try_into().ok().filter(|chars: &[u8; _]| chars.ends_with(b"="))?;
    chars[SIGNATURE_CHARS - 1] = b'A'; // a digit of 0
    let (mut all, mut threes) = (0, [0_u32; SIGNATURE_CHARS / 4]);
    for (three, four) in threes.iter_mut().zip(chars.chunks_exact(4)) {
        for char in four {
            let digit = SIX_BITS[usize::from(*char)];
            all |= digit;
            *three = *three << 6 | u32::from(digit);
        }
    }
    let [a, b, c, d, e, f, g] = threes;
    // Bits behind those of the digest have to be 0.
    let is_exact = all < NO_DIGIT && g & 0xFF == 0;
    is_exact.then_some([a << 8 | b >> 16, b << 16 | c >> 8, c << 24 | d, e << 8 | f >> 16, f << 16 | g >> 8])
}

/// Above all digits.
const NO_DIGIT: u8 = 64;

/// Value of a character in Base64.
const SIX_BITS: [u8; 256] = {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = [NO_DIGIT; 256];
    let mut number = 0;
    while number < digits.len() {
        bits[digits[number] as usize] = number as u8;
        number += 1;
    }
    bits
};
