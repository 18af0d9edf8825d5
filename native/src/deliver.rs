//! Delivery of messages that waited, in bursts (aerobee/broker/delay/delivery_core.py is the definition): levels and timers.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::field::Value;
use crate::lane::{Burst, Outcome, State, Stop};
use crate::pull::Segment;
use crate::send::{BORN_HOST_V6, MAGIC_V1, Message, PROPERTIES_BYTES_MAX, STORE_HOST_V6};
use crate::text::{Properties, java_hash_from};

const BURST_BYTES_MAX: usize = 1 << 20;
const HEAD_BYTES: usize = 88; // of a record with two IPv4 hosts, up to its body
const RECORD_BYTES_MIN: usize = HEAD_BYTES + 1 + 2;
const DIGITS_MAX: usize = 18;

/// What a burst of deliveries is about. `stamp`: precision and time of delivery of timer messages, ms.
pub struct Due {
    pub sources: Vec<i64>,
    pub readable_end: i64,
    pub stamp: Option<(i64, i64)>,
}

/// A record that waited.
struct Waiting<'a> {
    flag: i32,
    sys_flag: i32,
    born_timestamp: i64,
    born_host: &'a [u8],
    store_timestamp: i64,
    reconsume_times: i32,
    body: &'a [u8],
    text: &'a [u8],
    pairs: Pairs<'a>,
}

/// What its properties say; of equal names the last counts.
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
}

/// Where records are read: the segment before the current one that was looked into last.
#[derive(Default)]
struct Reader {
    old: Option<Segment>,
    record: Vec<u8>,
}

impl State {
    /// Deliver from the first source on: (count, puts, fault).
    pub fn deliver<'py>(&mut self, py: Python<'py>, now_ms: i64, due: &Due) -> PyResult<Bound<'py, PyTuple>> {
        let mut burst = self.begin(py, &[], now_ms)?;
        let mut reader = Reader { old: None, record: std::mem::take(&mut self.scratch.body) };
        let (mut count, mut bytes, mut fault) = (0_usize, 0, None);
        for source in &due.sources {
            if bytes >= BURST_BYTES_MAX {
                break;
            }
            match self.deliver_one(&mut burst, &mut reader, *source, due) {
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
        self.scratch.body = reader.record;
        let puts = self.end(&mut burst);
        self.keep(burst.replies);
        let puts = match puts {
            Ok(puts) => puts,
            Err(error) => {
                fault = fault.or(Some(error));
                PyList::empty(py)
            }
        };
        let fault = match fault {
            // What is no error of the program, such as an interrupt, goes through.
            Some(error) if !error.is_instance_of::<pyo3::exceptions::PyException>(py) => return Err(error),
            fault => fault.map(|error| error.into_value(py)),
        };
        (count, puts, fault).into_pyobject(py)
    }

    fn deliver_one(
        &mut self,
        burst: &mut Burst<'_>,
        reader: &mut Reader,
        source: i64,
        due: &Due,
    ) -> Outcome<usize> {
        self.read_waiting(burst, reader, source, due.readable_end)?;
        let waiting = cut_waiting(&reader.record, source).ok_or(Stop::Slow)?;
        let is_inner = waiting.text.windows(6).any(|run| run == b"INNER_");
        let crc = u32::from_be_bytes([reader.record[8], reader.record[9], reader.record[10], reader.record[11]]);
        if is_inner || crc32fast::hash(waiting.body) & 0x7FFF_FFFF != crc || self.store_host.len() != 8 {
            return Err(Stop::Slow);
        }
        let plain = |raw: Option<_>| Ok(Value::Text { raw: raw.ok_or(Stop::Slow)?, escaped: false });
        let (topic, queue) = self.place(burst, plain(waiting.pairs.real_topic)?, plain(waiting.pairs.real_queue)?)?;
        let mut text = std::mem::take(&mut self.scratch.properties);
        let mut hashes = std::mem::take(&mut self.scratch.hashes);
        text.clear();
        text.extend_from_slice(waiting.text);
        if let Some((precision_ms, dequeue_ms)) = due.stamp {
            add_stamp(&mut text, waiting.store_timestamp, precision_ms, dequeue_ms);
        }
        hashes.clear();
        let tag_code = self.hash(topic, &waiting.pairs.indexed, &mut hashes);
        let message = Message {
            body: waiting.body,
            properties: &text,
            tag_code,
            flag: waiting.flag.into(),
            sys_flag: waiting.sys_flag.into(),
            born_timestamp: waiting.born_timestamp.into(),
            reconsume_times: waiting.reconsume_times.into(),
            prepared_offset: -1 - source,
        };
        burst.born_host.clear();
        burst.born_host.extend_from_slice(waiting.born_host);
        self.scratch.message_ids.clear();
        let appended = self.append(burst, topic, queue, &message, &hashes);
        self.scratch.properties = text;
        self.scratch.hashes = hashes;
        appended?;
        Ok(reader.record.len())
    }

    /// What the timer has to know of the sources, until one is not ordinary.
    pub fn look<'py>(
        &mut self,
        py: Python<'py>,
        sources: &[i64],
        readable_end: i64,
        precision_ms: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        let mut burst = self.begin(py, &[], 0)?;
        let mut reader = Reader { old: None, record: std::mem::take(&mut self.scratch.body) };
        let found = PyList::empty(py);
        for source in sources {
            match self.read_waiting(&mut burst, &mut reader, *source, readable_end) {
                Ok(()) => {}
                Err(Stop::Slow) => break,
                Err(Stop::Fault(error)) => return Err(error),
            }
            let Some(waiting) = cut_waiting(&reader.record, *source) else { break };
            let (Some(out_ms), Some(topic)) =
                (waiting.pairs.out_ms.and_then(number), waiting.pairs.real_topic)
            else {
                break;
            };
            let Ok(topic) = std::str::from_utf8(topic) else { break };
            let hash = java_hash_from(0, topic.as_bytes()) as i32;
            found.append((out_ms, waiting.due_ms(out_ms, precision_ms), waiting.pairs.cancels, topic, hash))?;
        }
        self.scratch.body = reader.record;
        self.end(&mut burst)?;
        self.keep(burst.replies);
        Ok(found)
    }

    /// Put the record at `source` into the reader's buffer.
    fn read_waiting(
        &mut self,
        burst: &mut Burst<'_>,
        reader: &mut Reader,
        source: i64,
        readable_end: i64,
    ) -> Outcome<()> {
        let py = burst.py;
        reader.record.clear();
        let log = self.log(burst).map_err(Stop::Fault)?;
        let (window, base) = if source >= log.base {
            (&log.window, log.base)
        } else {
            if reader.old.as_ref().is_none_or(|old| !(old.base..old.end).contains(&source)) {
                reader.old = Segment::find(self.log_object.bind(py), source).map_err(Stop::Fault)?;
            }
            let old = reader.old.as_ref().ok_or(Stop::Slow)?;
            (&old.window, old.base)
        };
        let size = u32::from_be_bytes(window.read(source - base).ok_or(Stop::Slow)?) as usize;
        let is_whole = size >= RECORD_BYTES_MIN && size as i64 <= readable_end - source;
        if !is_whole || !window.append_to(source - base, size, &mut reader.record) {
            return Err(Stop::Slow);
        }
        Ok(())
    }
}

impl Waiting<'_> {
    /// When a timer message is due, to the millisecond as far as it is known (timer_properties.due_time).
    fn due_ms(&self, out_ms: i64, precision_ms: i64) -> i64 {
        let pairs = &self.pairs;
        let after = |delay: Option<i64>, unit: i128| {
            delay.map(|delay| i128::from(self.store_timestamp) + i128::from(delay) * unit)
        };
        let mut due = None;
        if !pairs.has_rolled {
            due = match (pairs.delay_s, pairs.delay_ms) {
                (Some(seconds), _) => after(number(seconds), 1000),
                (None, Some(milliseconds)) => after(number(milliseconds), 1),
                (None, None) => None,
            };
        }
        let due = due.or_else(|| pairs.deliver_ms.and_then(number).map(i128::from));
        let end = out_ms.saturating_add(precision_ms);
        let fits = |due: &i64| out_ms < *due && *due <= end.saturating_add(precision_ms);
        due.and_then(|due| i64::try_from(due).ok()).filter(fits).unwrap_or(end)
    }
}

/// The properties that say when a timer message entered and left the wheel, where there is room.
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

/// Take a record apart; None for one that is not ordinary.
fn cut_waiting(record: &[u8], source: i64) -> Option<Waiting<'_>> {
    let word = |at: usize| Some(i32::from_be_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(i64::from_be_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let sys_flag = word(36)?;
    let body_bytes = usize::try_from(word(84)?).ok()?;
    let body_end = HEAD_BYTES.checked_add(body_bytes)?;
    if word(4)? as u32 != MAGIC_V1
        || long(28)? != source
        || i64::from(sys_flag) & (BORN_HOST_V6 | STORE_HOST_V6) != 0
        || body_end + 3 > record.len()
    {
        return None;
    }
    let text_at = body_end + 3 + usize::from(record[body_end]);
    let size = record.get(text_at - 2..text_at)?;
    let text = record.get(text_at..)?;
    if text.len() != usize::from(u16::from_be_bytes([size[0], size[1]])) {
        return None;
    }
    Some(Waiting {
        flag: word(16)?,
        sys_flag,
        born_timestamp: long(40)?,
        born_host: &record[48..56],
        store_timestamp: long(56)?,
        reconsume_times: word(72)?,
        body: &record[HEAD_BYTES..body_end],
        text,
        pairs: read_pairs(text)?,
    })
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
            _ => {}
        }
    }
    Some(found)
}

/// A decimal number of a property (timer_properties.number).
fn number(text: &[u8]) -> Option<i64> {
    if text.len() > DIGITS_MAX {
        return None;
    }
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
