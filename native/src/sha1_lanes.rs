//! SHA-1 of several texts in parallel: sixteen in the lanes of AVX-512, where the processor has it.
//!
//! SHA-1 carries its state from block to block, so several lanes cannot share one text; they hash texts of different
//! frames. When too few texts are left to fill the lanes, and on processors without AVX-512, the crate `sha1` hashes
//! them, with the processor's SHA-1 instructions where it has them. Layout and constants: FIPS 180-4.

use sha1::block_api::compress;

pub type State = [u32; 5];
pub type Block = [u8; BLOCK_BYTES];
pub const BLOCK_BYTES: usize = 64;
pub const LANES: usize = 16;
/// Initial state of a hash.
pub const START: State = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];

/// A hash on its way, and the blocks that it continues over.
#[derive(Clone, Copy)]
pub struct Text<'a> {
    pub state: State,
    pub blocks: &'a [Block],
}

/// Take each state over its blocks.
pub fn hash(texts: &mut [Text<'_>]) {
    #[cfg(target_arch = "x86_64")]
    for group in texts.chunks_mut(LANES) {
        avx512::hash_some(group);
    }
    for text in texts {
        compress(&mut text.state, std::mem::take(&mut text.blocks));
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    #![allow(unsafe_code)]

    use std::arch::x86_64::*;
    use std::array::from_fn;

    use super::{BLOCK_BYTES, Block, LANES, Text};

    // Minimum number of texts for which hashing in parallel is faster. A step of all lanes takes as long as 4.9 blocks
    // by the processor's instructions for SHA-1 (186 ns and 38), as 1.5 without them.
    const TEXTS_MIN: usize = 5;
    const TEXTS_MIN_WITHOUT_SHA: usize = 2;

    type Row = [u32; LANES];
    /// The five words of all lanes' states.
    type States = [Row; 5];

    /// Take as many of at most `LANES` texts over as many of their blocks as is quicker side by side.
    pub fn hash_some(texts: &mut [Text<'_>]) {
        if !(is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")) {
            return;
        }
        let least = if is_x86_feature_detected!("sha") { TEXTS_MIN } else { TEXTS_MIN_WITHOUT_SHA };
        if texts.len() < least {
            return;
        }
        let mut states: States = [[0; LANES]; 5];
        for (lane, text) in texts.iter().enumerate() {
            for (row, word) in states.iter_mut().zip(text.state) {
                row[lane] = word;
            }
        }
        // Number of blocks for which at least that many texts remain unfinished.
        let mut lengths = [0; LANES];
        let lengths = &mut lengths[..texts.len()];
        for (length, text) in lengths.iter_mut().zip(&*texts) {
            *length = text.blocks.len();
        }
        lengths.sort_unstable();
        let last = lengths[lengths.len() - least];
        let mut done = 0;
        while done < last {
            let end = lengths.iter().copied().find(|length| *length > done).unwrap_or(last).min(last);
            for at in done..end {
                // Finished lanes hash arbitrary bytes: their states are no longer read.
                let blocks = from_fn(|lane| texts.get(lane).and_then(|text| text.blocks.get(at)).unwrap_or(&[0; BLOCK_BYTES]));
                // SAFETY: that the processor has these instructions was checked above.
                unsafe { compress_all(&mut states, &blocks) };
            }
            done = end;
            for (lane, text) in texts.iter_mut().enumerate() {
                if text.blocks.len() == done || (done == last && text.blocks.len() > last) {
                    text.state = from_fn(|word| states[word][lane]);
                }
            }
        }
        for text in texts {
            text.blocks = &text.blocks[last.min(text.blocks.len())..];
        }
    }

    /// Take each lane's state over its block.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn compress_all(states: &mut States, blocks: &[&Block; LANES]) {
        let mut words = transposed(blocks);
        let before: [__m512i; 5] = from_fn(|word| of_row(&states[word]));
        let [mut a, mut b, mut c, mut d, mut e] = before;
        // Numbers are written out so that words stay in registers. The function is the truth table of f(b, c, d): choose, parity,
        // majority.
        macro_rules! rounds {
            ($constant:literal, $function:literal, $($t:literal)*) => {
                let constant = _mm512_set1_epi32($constant as u32 as i32);
                $(
                    if $t >= 16 {
                        let mixed = _mm512_ternarylogic_epi32::<0x96>(words[($t + 13) % 16], words[($t + 8) % 16], words[($t + 2) % 16]);
                        words[$t % 16] = _mm512_rol_epi32::<1>(_mm512_xor_si512(mixed, words[$t % 16]));
                    }
                    // In this order a step waits for the sum with `a` alone.
                    let sum = _mm512_add_epi32(_mm512_add_epi32(e, constant), words[$t % 16]);
                    let sum = _mm512_add_epi32(sum, _mm512_ternarylogic_epi32::<$function>(b, c, d));
                    let sum = _mm512_add_epi32(sum, _mm512_rol_epi32::<5>(a));
                    (a, b, c, d, e) = (sum, a, _mm512_rol_epi32::<30>(b), c, d);
                )*
            };
        }
        rounds!(0x5A82_7999, 0xCA, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
        rounds!(0x6ED9_EBA1, 0x96, 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39);
        rounds!(0x8F1B_BCDC_u32, 0xE8, 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59);
        rounds!(0xCA62_C1D6_u32, 0x96, 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79);
        let after = [a, b, c, d, e];
        for (number, state) in states.iter_mut().enumerate() {
            *state = to_row(_mm512_add_epi32(before[number], after[number]));
        }
    }

    /// The big-endian words of each lane's block, by their number: first within fours of lanes, then of all.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn transposed(blocks: &[&Block; LANES]) -> [__m512i; 16] {
        let swapped = _mm512_set4_epi32(0x0C0D_0E0F, 0x0809_0A0B, 0x0405_0607, 0x0001_0203);
        let mut fours = [_mm512_setzero_si512(); LANES]; // [4 g + w]: words w, w + 4, w + 8, w + 12 of lanes 4 g to 4 g + 3
        for (four, lanes) in fours.chunks_exact_mut(4).zip(blocks.chunks_exact(4)) {
            let [a, b, c, d] = from_fn(|lane| _mm512_shuffle_epi8(of_block(lanes[lane]), swapped));
            let (low_ab, high_ab) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (low_cd, high_cd) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            four[0] = _mm512_unpacklo_epi64(low_ab, low_cd);
            four[1] = _mm512_unpackhi_epi64(low_ab, low_cd);
            four[2] = _mm512_unpacklo_epi64(high_ab, high_cd);
            four[3] = _mm512_unpackhi_epi64(high_ab, high_cd);
        }
        let mut words = [_mm512_setzero_si512(); 16];
        for number in 0..4 {
            let [a, b, c, d] = from_fn(|group| fours[4 * group + number]);
            let (low_ab, high_ab) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xEE>(a, b));
            let (low_cd, high_cd) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xEE>(c, d));
            words[number] = _mm512_shuffle_i32x4::<0x88>(low_ab, low_cd);
            words[4 + number] = _mm512_shuffle_i32x4::<0xDD>(low_ab, low_cd);
            words[8 + number] = _mm512_shuffle_i32x4::<0x88>(high_ab, high_cd);
            words[12 + number] = _mm512_shuffle_i32x4::<0xDD>(high_ab, high_cd);
        }
        words
    }

    #[target_feature(enable = "avx512f")]
    fn of_block(block: &Block) -> __m512i {
        // SAFETY: both are 64 bytes, and each value of them is one of the other; so below.
        unsafe { std::mem::transmute::<Block, __m512i>(*block) }
    }

    #[target_feature(enable = "avx512f")]
    fn of_row(row: &Row) -> __m512i {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<Row, __m512i>(*row) }
    }

    #[target_feature(enable = "avx512f")]
    fn to_row(words: __m512i) -> Row {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<__m512i, Row>(words) }
    }
}
