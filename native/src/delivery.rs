//! Delivery of messages that waited, in runs (aerobee/broker/fastpath/delivery.py is the Python counterpart): levels and timers.
//! aerobee/broker/delay/redelivery.py is the reference of both.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::constants::{DELAY_DIGITS_MAX, DELIVERY_BYTES_MAX, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN};
use crate::appender::Appender;
use crate::field::Value;
use crate::outcome::{Outcome, Stop};
use crate::record::{Message, Record, body_crc};
use crate::results::DeliveryResult;
use crate::segment::Segment;
use crate::shared::{Burst, Gates, Identity, Shared};
use crate::text::{Properties, java_hash_from};

const GATES: Gates = Gates { sends: true, pulls: false };

/// Stores due messages under their real topics.
#[pyclass(frozen, module = "aerobee_native")]
pub struct DeliveryBackend {
    shared: Mutex<Shared>,
    forgets_topics: AtomicBool,
}

/// Arguments of a run of deliveries. `stamp`: precision and time of delivery of timer messages, ms.
struct Due {
    readable_end: i64,
    stamp: Option<(i64, i64)>,
}

/// Values of its properties; the last of equal names counts.
#[derive(Default)]
struct Pairs<'a> {
    indexed: Properties<'a>,
    real_topic: Option<&'a [u8]>,
    real_queue: Option<&'a [u8]>,
    out_ms: Option<&'a [u8]>,
    delay_s: Option<&'a [u8]>,
    delay_ms: Option<&'a [u8]>,
    deliver_ms: Option<&'a [u8]>,
    has_rolled: bool,
    cancels: bool,
    is_inner: bool, // it is for several queues
}

/// Source of records: the last used segment before the current one.
#[derive(Default)]
struct Reader {
    old: Option<Segment>,
    record: Vec<u8>,
}

#[pymethods]
impl DeliveryBackend {
    #[new]
    #[pyo3(signature = (*, store, find_topic, store_host, waiting))]
    fn new(
        store: Bound<'_, PyAny>,
        find_topic: Py<PyAny>,
        store_host: Vec<u8>,
        waiting: Py<PyAny>,
    ) -> PyResult<Self> {
        let identity = Identity::new(String::new(), String::new(), &PyDict::new(store.py()))?;
        let appender = Appender::new(&store, store_host, waiting)?;
        let shared = Shared::new(appender, identity, find_topic, HashSet::new(), None);
        Ok(Self { shared: Mutex::new(shared), forgets_topics: AtomicBool::new(false) })
    }

    /// Topics have changed: look everything up again.
    fn forget_topics(&self) {
        self.forgets_topics.store(true, Ordering::Relaxed);
    }

    /// Deliver the records at `sources`, which are due, from the first one on, as far as they are ordinary.
    #[pyo3(signature = (sources, now_ms, *, readable_end, stamp))]
    fn deliver(
        &self,
        py: Python<'_>,
        sources: Vec<i64>,
        now_ms: i64,
        readable_end: i64,
        stamp: Option<(i64, i64)>,
    ) -> PyResult<DeliveryResult> {
        // Already in use: a callback of a run called this delivery again.
        let Ok(mut shared) = self.shared.try_lock() else {
            return Ok(DeliveryResult { delivered_count: 0, appended: PyList::empty(py).unbind(), fault: None });
        };
        self.look_at_topics(py, &mut shared);
        deliver(&mut shared, py, &sources, now_ms, &Due { readable_end, stamp })
    }

    /// The timer's data about the records at `sources`, up to the first one that is not ordinary.
    #[pyo3(signature = (sources, *, readable_end, precision_ms))]
    fn look<'py>(
        &self,
        py: Python<'py>,
        sources: Vec<i64>,
        readable_end: i64,
        precision_ms: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let Ok(mut shared) = self.shared.try_lock() else { return Ok(PyList::empty(py)) };
        self.look_at_topics(py, &mut shared);
        look(&mut shared, py, &sources, readable_end, precision_ms)
    }
}

impl DeliveryBackend {
    fn look_at_topics(&self, py: Python<'_>, shared: &mut Shared) {
        if self.forgets_topics.swap(false, Ordering::Relaxed) {
            shared.forget_topics(py);
        }
    }
}

/// Deliver from the first source on.
fn deliver(shared: &mut Shared, py: Python<'_>, sources: &[i64], now_ms: i64, due: &Due) -> PyResult<DeliveryResult> {
    let mut burst = shared.begin(py, &[], now_ms, GATES)?;
    let mut reader = Reader { old: None, record: std::mem::take(&mut shared.scratch.body) };
    let (mut count, mut bytes, mut fault) = (0_usize, 0, None);
    for source in sources {
        if bytes >= DELIVERY_BYTES_MAX {
            break;
        }
        match deliver_one(shared, &mut burst, &mut reader, *source, due) {
            Ok(size) => {
                count += 1;
                bytes += size;
            }
            Err(Stop::Slow) => break,
            Err(Stop::Fault(error)) => {
                fault = Some(error);
                break;
            }
        }
    }
    shared.scratch.body = reader.record;
    let ended = shared.appender.end(&mut burst.writing);
    let appended = shared.appender.topics.take_totals(py)?;
    shared.keep(burst.replies);
    if let Err(error) = ended {
        fault = fault.or(Some(error));
    }
    let fault = match fault {
        // Exceptions that are no program errors, such as an interrupt, pass through.
        Some(error) if !error.is_instance_of::<pyo3::exceptions::PyException>(py) => return Err(error),
        fault => fault.map(|error| error.into_value(py).into_any()),
    };
    Ok(DeliveryResult { delivered_count: count, appended: appended.unbind(), fault })
}

fn deliver_one(
    shared: &mut Shared,
    burst: &mut Burst<'_>,
    reader: &mut Reader,
    source: i64,
    due: &Due,
) -> Outcome<usize> {
    read_waiting(shared, burst, reader, source, due.readable_end)?;
    let record = Record::cut(&reader.record, source).ok_or(Stop::Slow)?;
    let pairs = read_pairs(record.properties).ok_or(Stop::Slow)?;
    if pairs.is_inner || body_crc(record.body) != record.crc || shared.appender.store_host.len() != 8 {
        return Err(Stop::Slow);
    }
    let plain = |raw: Option<_>| Ok(Value::Text { raw: raw.ok_or(Stop::Slow)?, escaped: false });
    let (topic, queue) = shared.find(burst.writing.py, plain(pairs.real_topic)?, plain(pairs.real_queue)?)?;
    let mut text = std::mem::take(&mut shared.scratch.properties);
    let mut hashes = std::mem::take(&mut shared.scratch.hashes);
    text.clear();
    text.extend_from_slice(record.properties);
    if let Some((precision_ms, dequeue_ms)) = due.stamp {
        add_stamp(&mut text, record.store_timestamp, precision_ms, dequeue_ms);
    }
    hashes.clear();
    let tag_code = shared.hash(topic, &pairs.indexed, &mut hashes);
    let message = Message {
        body: record.body,
        properties: &text,
        tag_code,
        flag: record.flag.into(),
        sys_flag: record.sys_flag.into(),
        born_timestamp: record.born_timestamp.into(),
        reconsume_times: record.reconsume_times.into(),
        prepared_offset: -1 - source,
    };
    burst.writing.born_host.clear();
    burst.writing.born_host.extend_from_slice(record.born_host);
    let appended = shared.appender.append(&mut burst.writing, topic, queue, &message, &hashes);
    shared.scratch.properties = text;
    shared.scratch.hashes = hashes;
    appended?;
    Ok(reader.record.len())
}

/// The timer's data about the sources, up to the first one that is not ordinary.
fn look<'py>(
    shared: &mut Shared,
    py: Python<'py>,
    sources: &[i64],
    readable_end: i64,
    precision_ms: i64,
) -> PyResult<Bound<'py, PyList>> {
    let mut burst = shared.begin(py, &[], 0, GATES)?;
    let mut reader = Reader { old: None, record: std::mem::take(&mut shared.scratch.body) };
    let found = PyList::empty(py);
    for source in sources {
        match read_waiting(shared, &mut burst, &mut reader, *source, readable_end) {
            Ok(()) => {}
            Err(Stop::Slow) => break,
            Err(Stop::Fault(error)) => return Err(error),
        }
        let Some(record) = Record::cut(&reader.record, *source) else { break };
        let Some(pairs) = read_pairs(record.properties) else { break };
        let (Some(out_ms), Some(topic)) = (pairs.out_ms.and_then(number), pairs.real_topic) else { break };
        let Ok(topic) = std::str::from_utf8(topic) else { break };
        let hash = java_hash_from(0, topic.as_bytes()) as i32;
        let due_ms = pairs.due_ms(out_ms, precision_ms, record.store_timestamp);
        found.append((out_ms, due_ms, pairs.cancels, topic, hash))?;
    }
    shared.scratch.body = reader.record;
    shared.appender.end(&mut burst.writing)?;
    shared.keep(burst.replies);
    Ok(found)
}

/// Put the record at `source` into the reader's buffer.
fn read_waiting(
    shared: &mut Shared,
    burst: &mut Burst<'_>,
    reader: &mut Reader,
    source: i64,
    readable_end: i64,
) -> Outcome<()> {
    let (py, appender, writing) = (burst.writing.py, &mut shared.appender, &mut burst.writing);
    reader.record.clear();
    let is_whole = |size: u32| size as usize >= RECORD_BYTES_MIN && i64::from(size) <= readable_end - source;
    if source >= appender.current_base(writing).map_err(Stop::Fault)? {
        let size = appender.size_in_current(writing, source).map_err(Stop::Fault)?.ok_or(Stop::Slow)?;
        let is_there = is_whole(size)
            && appender.read_current(writing, source, size as usize, &mut reader.record).map_err(Stop::Fault)?;
        return if is_there { Ok(()) } else { Err(Stop::Slow) };
    }
    if reader.old.as_ref().is_none_or(|old| !(old.base..old.end).contains(&source)) {
        reader.old = Segment::find(appender.log_object.bind(py), source).map_err(Stop::Fault)?;
    }
    let old = reader.old.as_ref().ok_or(Stop::Slow)?;
    let size = u32::from_be_bytes(old.window.read(source - old.base).ok_or(Stop::Slow)?);
    if !is_whole(size) || !old.window.append_to(source - old.base, size as usize, &mut reader.record) {
        return Err(Stop::Slow);
    }
    Ok(())
}

impl Pairs<'_> {
    /// Due time of a timer message, to the millisecond if known (timer_properties.due_time).
    fn due_ms(&self, out_ms: i64, precision_ms: i64, store_timestamp: i64) -> i64 {
        let after = |delay: Option<i64>, unit: i128| {
            delay.map(|delay| i128::from(store_timestamp) + i128::from(delay) * unit)
        };
        let mut due = None;
        if !self.has_rolled {
            due = match (self.delay_s, self.delay_ms) {
                (Some(seconds), _) => after(number(seconds), 1000),
                (None, Some(milliseconds)) => after(number(milliseconds), 1),
                (None, None) => None,
            };
        }
        let due = due.or_else(|| self.deliver_ms.and_then(number).map(i128::from));
        let end = out_ms.saturating_add(precision_ms);
        let fits = |due: &i64| out_ms < *due && *due <= end.saturating_add(precision_ms);
        due.and_then(|due| i64::try_from(due).ok()).filter(fits).unwrap_or(end)
    }
}

/// The properties that say when a timer message entered and left the wheel, where there is space.
fn add_stamp(text: &mut Vec<u8>, store_timestamp: i64, precision_ms: i64, dequeue_ms: i64) {
    let enqueue_ms = store_timestamp - store_timestamp.rem_euclid(precision_ms.max(1));
    let added = format!("TIMER_ENQUEUE_MS\x01{enqueue_ms}\x02TIMER_DEQUEUE_MS\x01{dequeue_ms}\x02");
    if text.len() + added.len() < PROPERTIES_BYTES_MAX {
        if text.last() != Some(&2) {
            text.push(2);
        }
        text.extend_from_slice(added.as_bytes());
    }
}

/// Read properties of which each has a name and a value; None for any other text.
fn read_pairs(text: &[u8]) -> Option<Pairs<'_>> {
    std::str::from_utf8(text).ok()?;
    let mut found = Pairs::default();
    let mut rest = text;
    while !rest.is_empty() {
        let middle = rest.iter().position(|byte| matches!(byte, 1 | 2)).filter(|at| *at > 0 && rest[*at] == 1)?;
        let (name, value) = (&rest[..middle], &rest[middle + 1..]);
        let end = value.iter().position(|byte| matches!(byte, 1 | 2));
        let (value, behind) = match end {
            Some(at) if value[at] == 2 => (&value[..at], &value[at + 1..]),
            Some(_) => return None,
            None => (value, &[][..]),
        };
        if value.is_empty() {
            return None;
        }
        rest = behind;
        match name {
            b"UNIQ_KEY" => found.indexed.unique_key = Some(value),
            b"KEYS" => found.indexed.keys = Some(value),
            b"TAGS" => found.indexed.tags = Some(value),
            b"REAL_TOPIC" => found.real_topic = Some(value),
            b"REAL_QID" => found.real_queue = Some(value),
            b"TIMER_OUT_MS" => found.out_ms = Some(value),
            b"TIMER_DELAY_SEC" => found.delay_s = Some(value),
            b"TIMER_DELAY_MS" => found.delay_ms = Some(value),
            b"TIMER_DELIVER_MS" => found.deliver_ms = Some(value),
            b"TIMER_ROLL_TIMES" => found.has_rolled = true,
            b"TIMER_DEL_UNIQKEY" => found.cancels = true,
            _ => found.is_inner |= name.starts_with(b"INNER_"),
        }
    }
    Some(found)
}

/// A decimal number of a property (timer_properties.number).
fn number(text: &[u8]) -> Option<i64> {
    if text.len() > DELAY_DIGITS_MAX {
        return None;
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
