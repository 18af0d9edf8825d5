//! Counts delivered messages by authorization, until Python reads the totals.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyList;

/// Totals since they were taken.
#[derive(Default)]
pub struct HandedOut {
    totals: Vec<Total>,
    numbers: HashMap<usize, usize>, // in `totals`, by the address of the authorization, which is held there
    last: usize,                    // the one that was found last: most pulls are those of who pulled before
}

struct Total {
    authorization: Py<PyAny>,
    message_count: u64,
    byte_count: u64,
    pull_count: u64,
}

impl HandedOut {
    /// A pull was answered with messages.
    pub fn add(&mut self, py: Python<'_>, authorization: &Py<PyAny>, message_count: u64, byte_count: u64) {
        if !self.totals.get(self.last).is_some_and(|total| total.authorization.is(authorization)) {
            let next = self.totals.len();
            self.last = *self.numbers.entry(authorization.as_ptr() as usize).or_insert(next);
            if self.last == next {
                let authorization = authorization.clone_ref(py);
                self.totals.push(Total { authorization, message_count: 0, byte_count: 0, pull_count: 0 });
            }
        }
        let total = &mut self.totals[self.last];
        total.message_count += message_count;
        total.byte_count += byte_count;
        total.pull_count += 1;
    }

    /// As seam.HandedOut; nothing is left.
    pub fn take<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let taken = PyList::empty(py);
        self.numbers.clear();
        for total in self.totals.drain(..) {
            taken.append((total.authorization, total.message_count, total.byte_count, total.pull_count))?;
        }
        Ok(taken)
    }
}
