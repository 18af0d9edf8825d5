//! Cached look-ups: topics and their queues (aerobee/broker/fastpath/topic.py).

use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};

use crate::constants::SIZE_ENDS;
use crate::text::{java_hash_from, positive};
use crate::window::Window;

/// Where a record of that size is counted: behind the last of SIZE_ENDS that it exceeds (broker/metrics/metrics.py); None: most are no larger than the first.
pub fn size_class(size: usize) -> Option<usize> {
    if size <= SIZE_ENDS[0] { None } else { SIZE_ENDS.iter().rposition(|end| size > *end) }
}

/// Topics and queues, which are named by their numbers in these lists.
#[derive(Default)]
pub struct Topics {
    pub list: Vec<Topic>,
    numbers: HashMap<Vec<u8>, usize>, // of ordinary topics, by name
    last: Option<usize>,                  // the one that was found last: most messages go where the one before them went
    pub queues: Vec<Queue>,
    /// Total number of storing requests.
    pub request_count: u64,
    // Since totals were taken: where something was stored, and totals of topics that are forgotten.
    touched: Vec<usize>,
    forgotten: Vec<TopicTotal>,
}

/// Stored messages of one topic.
pub struct TopicTotal {
    name: Py<PyString>,
    message_count: u64,
    byte_count: u64,
    request_count: u64,
    /// Records beyond each of SIZE_ENDS, and not beyond the next.
    larger: [u64; SIZE_ENDS.len()],
}

impl TopicTotal {
    /// As seam.Appended.
    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let larger = if self.larger.iter().all(|count| *count == 0) { PyTuple::empty(py) } else { PyTuple::new(py, self.larger)? };
        (&self.name, self.message_count, self.byte_count, self.request_count, larger).into_pyobject(py)
    }
}

impl Topics {
    /// Add a topic; returns its number.
    pub fn add(&mut self, topic: Topic) -> usize {
        self.list.push(topic);
        self.list.len() - 1
    }

    /// The number of an ordinary topic that has been looked up.
    pub fn find(&mut self, name: &[u8]) -> Option<usize> {
        if let Some(last) = self.last.filter(|last| self.list[*last].name() == name) {
            return Some(last);
        }
        let number = self.numbers.get(name).copied()?;
        self.last = (self.list[number].name() == name).then_some(number);
        Some(number)
    }

    /// An ordinary topic was looked up.
    pub fn remember(&mut self, name: &[u8], number: usize) {
        self.numbers.insert(name.to_vec(), number);
    }

    /// A request has stored something in a topic.
    pub fn count_request(&mut self, topic: usize) {
        self.list[topic].request_count += 1;
        self.request_count += 1;
    }

    /// Messages were stored in a topic.
    pub fn count(&mut self, topic: usize, message_count: u64, byte_count: u64) {
        let counts = &mut self.list[topic];
        if !counts.is_touched {
            counts.is_touched = true;
            self.touched.push(topic);
        }
        counts.count += message_count;
        counts.byte_count += byte_count;
    }

    /// Messages stored since the last call, by topic; a topic that was dropped in between may occur twice.
    pub fn take_totals<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let totals = PyList::empty(py);
        for total in self.forgotten.drain(..) {
            totals.append(total.tuple(py)?)?;
        }
        for number in self.touched.drain(..) {
            let topic = &mut self.list[number];
            topic.is_touched = false;
            if let Some(total) = topic.take_total(py) {
                totals.append(total.tuple(py)?)?;
            }
        }
        Ok(totals)
    }

    /// Topics have changed: every number is void.
    pub fn clear(&mut self, py: Python<'_>) {
        for number in self.touched.drain(..) {
            self.forgotten.extend(self.list[number].take_total(py));
        }
        self.list.clear();
        self.numbers.clear();
        self.last = None;
        self.queues.clear();
    }
}

/// One queue of an ordinary topic.
pub struct Queue {
    pub object: Py<PyAny>,
    pub key: Py<PyTuple>, // (topic, queue id), as the table of pending requests has it
    pub id: i32,
    pub reply_start: Vec<u8>,
    /// The numbers of the Python object while a burst writes to it.
    pub live: Option<LiveQueue>,
}

/// A queue as a burst sees it; settled into the Python object before Python code reads it.
pub struct LiveQueue {
    pub max_offset: i64,
    pub room: i64,
    pub base: i64,
    pub window: Window,
    pub is_dirty: bool,
    /// A listener needs each message.
    pub notify: bool,
    pub is_changed: bool,
}

impl LiveQueue {
    pub fn load(py: Python<'_>, queue: &Py<PyAny>, notify: bool) -> PyResult<Self> {
        let queue = queue.bind(py);
        Ok(Self {
            max_offset: queue.getattr(intern!(py, "max_offset"))?.extract()?,
            room: queue.getattr(intern!(py, "room"))?.extract()?,
            base: queue.getattr(intern!(py, "tail_base"))?.extract()?,
            window: Window::new(&queue.getattr(intern!(py, "tail_buffer"))?)?,
            is_dirty: queue.getattr(intern!(py, "unsynced_from"))?.extract::<i64>()? >= 0,
            notify,
            is_changed: false,
        })
    }

    /// Write what changed into the Python object. Messages without a listener become readable by it.
    pub fn settle(&mut self, py: Python<'_>, queue: &Py<PyAny>) -> PyResult<()> {
        if self.is_changed {
            self.is_changed = false;
            let queue = queue.bind(py);
            queue.setattr(intern!(py, "max_offset"), self.max_offset)?;
            if !self.notify {
                queue.setattr(intern!(py, "readable_max"), self.max_offset)?;
            }
        }
        Ok(())
    }
}

/// One ordinary topic. Dropped when the topic's config changes.
pub struct Topic {
    pub py_name: Py<PyString>,
    pub field: Vec<u8>, // length byte and name, as records have it
    pub queue_count: i64,
    pub write_count: i64,
    pub grpc_queue_count: Option<u32>, // of those that a SendMessage may go to; None: not asked yet
    queues: Vec<Option<u32>>, // by queue id: the number in the list of queues
    pub hash_start: u32,
    // Since totals were taken.
    is_touched: bool,
    pub count: u64,
    pub byte_count: u64,
    request_count: u64,
    pub larger: [u64; SIZE_ENDS.len()],
}

impl Topic {
    pub fn load(py: Python<'_>, config: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py_name = config.getattr(intern!(py, "topic_name"))?.cast_into::<PyString>()?;
        let name = py_name.to_cow()?.into_owned().into_bytes();
        let read: i64 = config.getattr(intern!(py, "read_queue_nums"))?.extract()?;
        let write: i64 = config.getattr(intern!(py, "write_queue_nums"))?.extract()?;
        let mut field = vec![u8::try_from(name.len())?];
        field.extend_from_slice(&name);
        let hash_start = java_hash_from(java_hash_from(0, &name), b"#");
        Ok(Self {
            py_name: py_name.unbind(),
            field,
            queue_count: read.max(write),
            write_count: write,
            grpc_queue_count: None,
            queues: Vec::new(),
            hash_start,
            is_touched: false,
            count: 0,
            byte_count: 0,
            request_count: 0,
            larger: [0; SIZE_ENDS.len()],
        })
    }

    fn take_total(&mut self, py: Python<'_>) -> Option<TopicTotal> {
        let total = TopicTotal {
            name: self.py_name.clone_ref(py),
            message_count: std::mem::take(&mut self.count),
            byte_count: std::mem::take(&mut self.byte_count),
            request_count: std::mem::take(&mut self.request_count),
            larger: std::mem::take(&mut self.larger),
        };
        (total.message_count > 0).then_some(total)
    }

    /// The number of a queue that has been looked up.
    pub fn queue(&self, id: i64) -> Option<usize> {
        let found = *self.queues.get(usize::try_from(id).ok()?)?;
        found.map(|number| number as usize)
    }

    /// A queue, whose id is below `queue_count`, was looked up.
    pub fn remember_queue(&mut self, id: i64, number: usize) {
        let (Ok(id), Ok(number)) = (usize::try_from(id), u32::try_from(number)) else { return };
        if id >= self.queues.len() {
            self.queues.resize(id + 1, None);
        }
        self.queues[id] = Some(number);
    }

    /// The topic's name.
    pub fn name(&self) -> &[u8] {
        &self.field[1..]
    }

    /// The hash of the index key `topic#key`.
    pub fn key_hash(&self, key: &[u8]) -> i32 {
        positive(java_hash_from(self.hash_start, key))
    }

    /// The hash of the index key `topic#T#tag`.
    pub fn tag_hash(&self, tag: &[u8]) -> i32 {
        positive(java_hash_from(java_hash_from(self.hash_start, b"T#"), tag))
    }
}
