//! Durations of requests, counted in the steps of Latency in aerobee/broker/metrics/metrics.py.

use std::time::Duration;

use pyo3::prelude::*;

use crate::window::Window;

const STEP_BYTES: i64 = 8;
/// Steps of a second: 60 ns each.
const STEPS_A_S: u64 = 1 << 24;
/// Shorter durations share a step.
const EXACT_BELOW: i64 = 8;
const NANOS_A_S: u64 = 1_000_000_000;

/// The steps of one Latency, which belong to Python: each a native 64-bit count.
pub struct Steps {
    counts: Window,
    add: Py<PyAny>, // receiver of durations beyond the steps: (seconds, times)
}

impl Steps {
    pub fn new(counts: &Bound<'_, PyAny>, add: Py<PyAny>) -> PyResult<Self> {
        Ok(Self { counts: Window::new(counts)?, add })
    }

    /// `times` requests took that long each.
    pub fn add(&self, py: Python<'_>, took: Duration, times: u64) -> PyResult<()> {
        if times == 0 {
            return Ok(());
        }
        // Whole seconds are far beyond the last step: no more of them than cannot overflow.
        let steps = took.as_secs().min(1 << 32) * STEPS_A_S + u64::from(took.subsec_nanos()) * STEPS_A_S / NANOS_A_S;
        let step = steps as i64;
        let at = step.saturating_mul(STEP_BYTES);
        let known = if step < EXACT_BELOW { None } else { self.counts.read::<8>(at) };
        let is_counted = known.is_some_and(|count| {
            let count = u64::from_ne_bytes(count).wrapping_add(times);
            self.counts.write(at, &count.to_ne_bytes())
        });
        if is_counted {
            return Ok(());
        }
        self.add.bind(py).call1((took.as_secs_f64(), times)).map(|_| ())
    }
}
