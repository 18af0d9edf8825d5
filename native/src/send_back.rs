//! Messages that a consumer sends back (36), stored for the delay level of their next try
//! (aerobee/broker/fastpath/send_back.py is the Python counterpart, aerobee/broker/send/send_back_service.py the reference of both).

use std::borrow::Cow;
use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;

use crate::constants::{
    DLQ_PREFIX, ELIGIBLE_SYS_FLAG, FIRST_RETRY_LEVEL, LEVEL_MAX, PROPERTIES_BYTES_MAX, RECORD_BYTES_MIN, REPLY_VERSION, RETRY_PREFIX,
    SEND_BACK_LEVEL_MAX, SEND_BACK_PAIRS_MAX, SEND_BACK_RECORD_BYTES_MAX, SEND_BACK_SPECIAL, TOPIC_BYTES_MAX, VERSION_WITH_MAX_RECONSUME,
};
use crate::field::{Name, Value};
use crate::outcome::{Outcome, Stop, note_failed_callback};
use crate::record::{Message, Record, body_crc};
use crate::shared::{Burst, Form, Request, Shared, hex_of};
use crate::text::{NameSet, read_properties, write_decimal};

/// What the delayed messages' handler keeps for them. The hooks are SendBackHooks of aerobee/broker/fastpath/seam.py.
pub struct SendBacks {
    hooks: Py<PyAny>,
    groups: HashMap<Vec<u8>, Group>,
    /// Numbers of the retry topics by group, also of groups that are looked up again: a number is kept until topics change.
    topics: HashMap<Vec<u8>, usize>,
    /// Of this burst: group, first topic of the message, how many.
    counts: Vec<(Vec<u8>, Vec<u8>, u64)>,
    record: Vec<u8>,
}

/// The delay levels in whose queues messages wait for their next try.
pub trait DelayLevels {
    /// Whether messages may be delayed now.
    fn is_allowed(&mut self, burst: &Burst<'_>) -> Outcome<bool>;
    fn level_count(&self) -> usize;
    /// The delay of a level, which exists.
    fn delay_ms(&self, level: usize) -> i64;
    fn broker_name(&self) -> &[u8];
    /// The number of the schedule topic.
    fn schedule(&mut self, shared: &mut Shared, py: Python<'_>) -> Outcome<usize>;
    /// The number of the queue of a level.
    fn level_queue(&mut self, shared: &mut Shared, py: Python<'_>, stored: usize, level: usize) -> Outcome<usize>;
    /// The delivery of a level is to know of its first message in a burst.
    fn tell_level(&mut self, burst: &mut Burst<'_>, level: usize, queue_offset: i64, due_ms: i64) -> Outcome<()>;
}

/// A group that takes messages back.
#[derive(Clone, Copy)]
struct Group {
    /// Number of its retry topic.
    topic: usize,
    queue_count: i64,
    /// Tries after which a message is dead.
    tries_max: i64,
}

/// The properties of a message, in their order; no name occurs twice.
struct Pairs<'a>(Vec<(&'a [u8], Cow<'a, [u8]>)>);

/// The fields of a request.
struct Asked {
    offset: i64,
    group: Vec<u8>,
    level: i64,
    tries_max: Option<i64>,
}

impl SendBacks {
    pub fn new(hooks: Py<PyAny>) -> Self {
        Self { hooks, groups: HashMap::new(), topics: HashMap::new(), counts: Vec::new(), record: Vec::new() }
    }

    /// Groups have changed.
    pub fn forget(&mut self) {
        self.groups.clear();
    }

    /// Topics have changed: every number is void.
    pub fn forget_topics(&mut self) {
        self.groups.clear();
        self.topics.clear();
    }

    /// A burst has ended: its send-backs are counted.
    pub fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        for (group, topic, count) in self.counts.drain(..) {
            let names = (String::from_utf8_lossy(&group), String::from_utf8_lossy(&topic), count);
            if let Err(error) = self.hooks.bind(py).call_method1(intern!(py, "sent_back"), names) {
                note_failed_callback(py, error, "counting a message that was sent back")?;
            }
        }
        Ok(())
    }

    fn count(&mut self, group: &[u8], topic: &[u8]) {
        match self.counts.iter_mut().find(|(known, of, _)| known == group && of == topic) {
            Some((_, _, count)) => *count += 1,
            None => self.counts.push((group.to_vec(), topic.to_vec(), 1)),
        }
    }

    fn group(&mut self, shared: &mut Shared, py: Python<'_>, name: &[u8]) -> Outcome<Group> {
        if let Some(group) = self.groups.get(name) {
            return Ok(*group);
        }
        let text = std::str::from_utf8(name).map_err(|_| Stop::Slow)?;
        let found = self.hooks.bind(py).call_method1(intern!(py, "group"), (text,));
        let found = shared.appender.errors.check(py, found)?;
        if found.is_none() {
            return Err(Stop::Slow);
        }
        let (config, tries_max): (Bound<'_, PyAny>, i64) = found.extract().map_err(Stop::Fault)?;
        let topic = match self.topics.get(name) {
            Some(topic) => *topic,
            None => {
                let topic = shared.appender.add_topic(py, &config)?;
                self.topics.insert(name.to_vec(), topic);
                topic
            }
        };
        let group = Group { topic, queue_count: shared.appender.topics.list[topic].write_count, tries_max };
        self.groups.insert(name.to_vec(), group);
        Ok(group)
    }

    fn pick(&self, py: Python<'_>, count: i64) -> Outcome<i64> {
        if count == 1 {
            return Ok(0);
        }
        self.hooks.bind(py).call_method1(intern!(py, "pick"), (count,)).and_then(|id| id.extract()).map_err(Stop::Fault)
    }

    /// Store a message again for its next try, and answer.
    pub fn serve(
        &mut self,
        levels: &mut impl DelayLevels,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        request: &Request<'_>,
    ) -> Outcome<()> {
        let mut record = std::mem::take(&mut self.record);
        let stored = self.store_again(levels, shared, burst, request, &mut record);
        self.record = record;
        let waits = stored?;
        if request.flag == 0 {
            write_empty_reply(if waits { &mut burst.held } else { &mut burst.replies }, request.opaque);
        }
        Ok(())
    }

    /// Returns whether the reply is held.
    fn store_again(
        &mut self,
        levels: &mut impl DelayLevels,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        request: &Request<'_>,
        bytes: &mut Vec<u8>,
    ) -> Outcome<bool> {
        let py = burst.writing.py;
        let asked = Asked::read(request).ok_or(Stop::Slow)?;
        if !levels.is_allowed(burst)? {
            return Err(Stop::Slow);
        }
        let group = self.group(shared, py, &asked.group)?;
        read_record(shared, burst, asked.offset, bytes)?;
        let record = Record::cut(bytes, asked.offset).ok_or(Stop::Slow)?;
        // Where a port's highest bit is set the handler refuses the host.
        let is_plain = i64::from(record.sys_flag) & !ELIGIBLE_SYS_FLAG == 0
            && record.born_host[4] & 0x80 == 0
            && record.store_host[4] & 0x80 == 0
            && (record.body.is_empty() || body_crc(record.body) == record.crc)
            && record.body.len() <= shared.max_message_bytes
            && i64::from(record.reconsume_times) < asked.tries_max.unwrap_or(group.tries_max);
        let level = match asked.level {
            0 => FIRST_RETRY_LEVEL + i64::from(record.reconsume_times),
            level => level,
        };
        let level = level.min(levels.level_count() as i64);
        if !is_plain || !(1..=LEVEL_MAX).contains(&level) || record.reconsume_times == i32::MAX {
            return Err(Stop::Slow);
        }
        let topic = std::str::from_utf8(record.topic).map_err(|_| Stop::Slow)?;
        let mut pairs = Pairs::read(record.properties).ok_or(Stop::Slow)?;
        let is_retry = record.topic.starts_with(RETRY_PREFIX) || record.topic.starts_with(DLQ_PREFIX);
        let first_topic = if is_retry {
            pairs.get(b"RETRY_TOPIC").filter(|name| is_plain_topic(name)).ok_or(Stop::Slow)?.to_vec()
        } else {
            record.topic.to_vec()
        };
        // The queue's entry must be found also where this burst has stored the record, and reading it may close a file that it writes to.
        shared.appender.release(&mut burst.writing).map_err(Stop::Fault)?;
        let place = (topic, record.queue_id, record.queue_offset, asked.offset, record.size);
        let is_record = self.hooks.bind(py).call_method1(intern!(py, "is_record"), place).and_then(|is| is.is_truthy());
        if !shared.appender.errors.check(py, is_record)? {
            return Err(Stop::Slow);
        }
        let waits = burst.waits(true)?;
        let queue_id = self.pick(py, group.queue_count)?;
        pairs.set(b"RETRY_TOPIC", first_topic.clone());
        if pairs.get(b"ORIGIN_MESSAGE_ID").is_none() {
            pairs.set(b"ORIGIN_MESSAGE_ID", message_id(record.store_host, asked.offset));
        }
        if !is_retry {
            pairs.set(b"ORIGIN_POSITION", position_of(levels.broker_name(), &record));
        }
        pairs.set(b"WAIT", b"false".to_vec());
        pairs.set(b"DELAY", level.to_string().into_bytes());
        pairs.set(b"REAL_TOPIC", shared.appender.topics.list[group.topic].name().to_vec());
        pairs.set(b"REAL_QID", queue_id.to_string().into_bytes());
        let mut text = std::mem::take(&mut shared.scratch.properties);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        pairs.write(&mut text);
        let stored = append_again(levels, shared, burst, &record, &text, &mut hashes, level as usize, group.topic);
        shared.scratch.properties = text;
        shared.scratch.hashes = hashes;
        stored?;
        self.count(&asked.group, &first_topic);
        Ok(waits)
    }
}

#[allow(clippy::too_many_arguments)]
fn append_again(
    levels: &mut impl DelayLevels,
    shared: &mut Shared,
    burst: &mut Burst<'_>,
    record: &Record<'_>,
    text: &[u8],
    hashes: &mut Vec<i32>,
    level: usize,
    topic: usize,
) -> Outcome<()> {
    if text.len() > PROPERTIES_BYTES_MAX {
        return Err(Stop::Slow);
    }
    let py = burst.writing.py;
    let stored = levels.schedule(shared, py)?;
    hashes.clear();
    shared.hash(stored, &read_properties(text, &NameSet::new([])), hashes);
    let due_ms = burst.writing.now_ms + levels.delay_ms(level);
    let message = Message {
        body: record.body,
        properties: text,
        tag_code: due_ms,
        flag: record.flag.into(),
        sys_flag: record.sys_flag.into(),
        born_timestamp: record.born_timestamp.into(),
        reconsume_times: i64::from(record.reconsume_times) + 1,
        prepared_offset: 0,
    };
    let queue = levels.level_queue(shared, py, stored, level)?;
    // The message keeps the host that it was sent from.
    let consumer = std::mem::replace(&mut burst.writing.born_host, record.born_host.to_vec());
    let appended = shared.appender.append(&mut burst.writing, stored, queue, &message, hashes);
    burst.writing.born_host = consumer;
    let placed = appended?;
    shared.appender.count_for(stored, topic, placed.size);
    levels.tell_level(burst, level, placed.queue_offset, due_ms)
}

/// Broker, queue and offset that a message had before its first retry.
fn position_of(broker_name: &[u8], record: &Record<'_>) -> Vec<u8> {
    let mut text = broker_name.to_vec();
    text.push(b'/');
    write_decimal(&mut text, record.queue_id.into());
    text.push(b'@');
    write_decimal(&mut text, record.queue_offset);
    text
}

impl Asked {
    /// None for a request that is the handler's.
    fn read(request: &Request<'_>) -> Option<Self> {
        let field = |name| request.fields.get(name);
        let is_plain = match field(Name::UnitMode) {
            Value::Missing => true,
            Value::Text { raw, .. } => raw == b"false",
            _ => false,
        };
        if request.form != Form::Json || !is_plain || !matches!(field(Name::SendBackExtra), Value::Missing) {
            return None;
        }
        let tries_max = match field(Name::MaxReconsumeTimes) {
            Value::Missing | Value::Text { raw: b"", .. } => None,
            value => Some(value.number()?),
        };
        let version = request.version?;
        Some(Self {
            offset: field(Name::Offset).number()?,
            group: field(Name::Group).text()?.into_owned(),
            level: field(Name::DelayLevel).number().filter(|level| (0..=SEND_BACK_LEVEL_MAX).contains(level))?,
            tries_max: tries_max.filter(|tries| version >= VERSION_WITH_MAX_RECONSUME && *tries >= 0),
        })
    }
}

impl<'a> Pairs<'a> {
    /// Read properties that each have a name and a value. None when one is special: SEND_BACK_SPECIAL is for the handler.
    fn read(text: &'a [u8]) -> Option<Self> {
        std::str::from_utf8(text).ok()?;
        if text.contains(&0) {
            return None; // the handler looks whether the disk has lost a sector
        }
        let mut found: Vec<(&[u8], Cow<'_, [u8]>)> = Vec::new();
        for pair in text.strip_suffix(b"\x02").unwrap_or(text).split(|byte| *byte == 2) {
            let middle = pair.iter().position(|byte| *byte == 1)?;
            let (name, value) = (&pair[..middle], &pair[middle + 1..]);
            let is_special = SEND_BACK_SPECIAL.iter().any(|each| name.starts_with(each.as_bytes()));
            if name.is_empty()
                || value.is_empty()
                || value.contains(&1)
                || is_special
                || found.len() == SEND_BACK_PAIRS_MAX
                || found.iter().any(|(known, _)| *known == name)
            {
                return None;
            }
            found.push((name, Cow::Borrowed(value)));
        }
        Some(Self(found))
    }

    fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| &**value)
    }

    /// Set a property; one that is there keeps its position.
    fn set(&mut self, name: &'static [u8], value: Vec<u8>) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = Cow::Owned(value),
            None => self.0.push((name, Cow::Owned(value))),
        }
    }

    fn write(&self, text: &mut Vec<u8>) {
        text.clear();
        for (name, value) in &self.0 {
            text.extend_from_slice(name);
            text.push(1);
            text.extend_from_slice(value);
            text.push(2);
        }
    }
}

/// Put the record at `offset` into `bytes`, if it lies in the log's current file.
fn read_record(shared: &mut Shared, burst: &mut Burst<'_>, offset: i64, bytes: &mut Vec<u8>) -> Outcome<()> {
    bytes.clear();
    let (appender, writing) = (&mut shared.appender, &mut burst.writing);
    if offset < appender.current_base(writing).map_err(Stop::Fault)? {
        return Err(Stop::Slow);
    }
    let size = appender.size_in_current(writing, offset).map_err(Stop::Fault)?.ok_or(Stop::Slow)? as usize;
    // At this offset may be anything: its size is bound before it is read, also because small requests may store it again and again.
    if !(RECORD_BYTES_MIN..=SEND_BACK_RECORD_BYTES_MAX).contains(&size) {
        return Err(Stop::Slow);
    }
    let is_there = appender.read_current(writing, offset, size, bytes).map_err(Stop::Fault)?;
    if is_there { Ok(()) } else { Err(Stop::Slow) }
}

/// Whether the name of a topic is surely legal.
fn is_plain_topic(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= TOPIC_BYTES_MAX
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-'))
}

/// The id of a record that contains its offset, in upper-case hex.
fn message_id(store_host: &[u8], offset: i64) -> Vec<u8> {
    let mut text: Vec<u8> = store_host.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()).collect();
    text.extend_from_slice(&hex_of(offset));
    text
}

/// The reply SUCCESS without fields.
fn write_empty_reply(out: &mut Vec<u8>, opaque: i64) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(b"{\"code\":0,\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
    write_decimal(out, opaque);
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    write_decimal(out, i64::from(REPLY_VERSION));
    out.push(b'}');
    let header_bytes = (out.len() - start - 8) as u32;
    out[start..start + 4].copy_from_slice(&(header_bytes + 4).to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&header_bytes.to_be_bytes());
}
