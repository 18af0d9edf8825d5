//! Requests that were answered, by code, counted in the rows of aerobee/remoting/request_stats.py.

use std::time::Duration;

use pyo3::prelude::*;

use crate::constants::FAST_CODES;
use crate::window::Window;

const ROWS: usize = 2 * FAST_CODES.len();
const ENDS_NS: [u128; 9] =
    [1_000_000, 3_000_000, 5_000_000, 7_000_000, 10_000_000, 100_000_000, 1_000_000_000, 2_000_000_000, 3_000_000_000];
const NUMBER_BYTES: usize = 8;
const ROW_BYTES: usize = NUMBER_BYTES * (ENDS_NS.len() + 2);

/// Answers by the code of their requests, in the order of FAST_CODES.
#[derive(Default)]
pub struct Answers([u64; FAST_CODES.len()]);

impl Answers {
    pub fn is_empty(&self) -> bool {
        self.0 == [0; FAST_CODES.len()]
    }

    /// (code, how many) of those that there are; nothing is left.
    pub fn take(&mut self) -> Vec<(i64, u64)> {
        let counts = std::mem::take(&mut self.0);
        FAST_CODES.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }
}

/// Answered and not yet counted, and where they are counted.
pub struct Requests {
    rows: Window,
    answered: [u64; ROWS],
    is_any: bool,
}

impl Requests {
    pub fn new(rows: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { rows: Window::new(rows)?, answered: [0; ROWS], is_any: false })
    }

    /// Count an answered request. `held` receives a reply that waits for the disk or for replicas.
    pub fn note(&mut self, code: i64, is_oneway: bool, held: Option<&mut Answers>) {
        let Some(number) = FAST_CODES.iter().position(|known| *known == code) else { return };
        match held {
            Some(held) => held.0[number] += 1,
            None => {
                self.answered[2 * number + usize::from(is_oneway)] += 1;
                self.is_any = true;
            }
        }
    }

    /// Record this duration for the requests answered since the last call.
    pub fn took(&mut self, took: Duration) {
        if !std::mem::take(&mut self.is_any) {
            return;
        }
        let nanos = took.as_nanos();
        let bucket = ENDS_NS.iter().position(|end| nanos <= *end).unwrap_or(ENDS_NS.len());
        let nanos = u64::try_from(nanos).unwrap_or(u64::MAX);
        for (row, times) in std::mem::take(&mut self.answered).into_iter().enumerate().filter(|(_, times)| *times > 0) {
            self.add(row * ROW_BYTES + bucket * NUMBER_BYTES, times);
            self.add((row + 1) * ROW_BYTES - NUMBER_BYTES, nanos.saturating_mul(times));
        }
    }

    /// Pass the requests answered since the last call to the Python counters.
    pub fn forget(&mut self) {
        self.answered = [0; ROWS];
        self.is_any = false;
    }

    fn add(&self, at: usize, value: u64) {
        let at = at as i64;
        let known = self.rows.read::<NUMBER_BYTES>(at).map_or(0, u64::from_ne_bytes);
        // The rows have the same length: request_stats.py creates them, and the interface version guarantees it.
        let _ = self.rows.write(at, &known.wrapping_add(value).to_ne_bytes());
    }
}
