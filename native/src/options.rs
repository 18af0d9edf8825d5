//! Sends (310) with an option: an ack level, a dedup key, a priority, LMQs (aerobee/broker/fastpath/options.py is the Python
//! counterpart, aerobee/broker/send/send_service.py the reference of both).

use std::collections::{HashMap, HashSet};

use pyo3::intern;
use pyo3::prelude::*;

use crate::constants::{ACK_LEVELS, ELIGIBLE_SYS_FLAG, LMQS_MAX, PRIORITY_CHARS_MAX, PROPERTIES_BYTES_MAX, SEND_MESSAGE_V2};
use crate::field::Value;
use crate::outcome::{Outcome, Stop};
use crate::record::Message;
use crate::shared::{Answer, Burst, Form, FrameHandler, Gate, Request, SHORT_NAMES, Shared, plain_queue_id};
use crate::text::{NameSet, is_alphanumeric, read_properties, write_decimal};

const STORED: usize = 0; // the level that does not wait

/// The family. Its hooks are OptionHooks of aerobee/broker/fastpath/seam.py.
pub struct OptionSends {
    hooks: Py<PyAny>,
    find_leveled: Py<PyAny>,
    /// Properties of messages that are for the handlers.
    special: NameSet,
    /// Queues of LMQs: number, and the burst in which it was found last, by name.
    lmqs: HashMap<Vec<u8>, (usize, u64)>,
    /// A burst, and the epoch of this broker's mastership in it.
    epoch: Option<(u64, i64)>,
}

/// The options of a message, as they stand in its properties.
#[derive(Default)]
struct Options<'a> {
    ack_level: Option<&'a [u8]>,
    dedup_key: Option<&'a [u8]>,
    priority: Option<&'a [u8]>,
    lmqs: Option<&'a [u8]>,
    is_ordered: bool,
}

impl FrameHandler for OptionSends {
    fn codes(&self) -> &'static [i64] {
        &[SEND_MESSAGE_V2]
    }

    fn gate(&self) -> Gate {
        Gate::Sends
    }

    /// Its hooks leave no work for the event loop.
    fn is_silent(&self) -> bool {
        true
    }

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        if request.form != Form::Json {
            return Err(Stop::Slow);
        }
        let mut text = std::mem::take(&mut shared.scratch.properties);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        let stored = self.store(shared, burst, request, &mut text, &mut hashes);
        shared.scratch.properties = text;
        shared.scratch.hashes = hashes;
        match &stored {
            Ok((answer, Some(level))) => shared.reply_leveled(burst, request, answer, *level),
            Ok((answer, None)) => shared.reply(burst, request, answer),
            Err(_) => {}
        }
        shared.scratch.more.clear();
        stored.map(|_| ())
    }

    fn forget_topics(&mut self) {
        self.lmqs.clear(); // the list of queues is empty
    }
}

impl OptionSends {
    pub fn new(hooks: Py<PyAny>, find_leveled: Py<PyAny>, special: HashSet<String>) -> Self {
        Self { hooks, find_leveled, special: NameSet::new(special), lmqs: HashMap::new(), epoch: None }
    }

    /// The queues of the LMQs that a message names, or leave it to the handlers.
    fn lmqs(&mut self, shared: &mut Shared, burst: &Burst<'_>, text: &[u8]) -> Outcome<Vec<usize>> {
        let py = burst.writing.py;
        let mut found = Vec::new();
        for name in text.split(|byte| *byte == b',') {
            if let Some((number, _)) = self.lmqs.get(name).filter(|(_, seen)| *seen == burst.number) {
                found.push(*number);
                continue;
            }
            let text = std::str::from_utf8(name).map_err(|_| Stop::Slow)?;
            let queue = self.hooks.bind(py).call_method1(intern!(py, "lmq"), (text,));
            let queue = shared.appender.errors.check(py, queue)?;
            if queue.is_none() {
                return Err(Stop::Slow);
            }
            // The object that is there now: it goes when the LMQ is deleted.
            let known = self.lmqs.get(name).filter(|(number, _)| shared.appender.topics.queues[*number].object.is(&queue));
            let number = match known {
                Some((number, _)) => *number,
                None => shared.appender.add_lone_queue(py, text, queue.unbind())?,
            };
            self.lmqs.insert(name.to_vec(), (number, burst.number));
            found.push(number);
        }
        let mut distinct = found.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if found.len() > LMQS_MAX || distinct.len() < found.len() { Err(Stop::Slow) } else { Ok(found) }
    }

    /// Store one message; returns its reply, and the ack level for which that waits.
    fn store(
        &mut self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        request: &Request<'_>,
        text: &mut Vec<u8>,
        hashes: &mut Vec<i32>,
    ) -> Outcome<(Answer, Option<usize>)> {
        let py = burst.writing.py;
        let fields = SHORT_NAMES.map(|name| request.fields.get(name));
        let [topic, queue, sys_flag, born, flag, properties, tries, batch] = fields;
        // First what tells half messages apart: nothing else of them is read here.
        let sys_flag = sys_flag.small().filter(|flag| flag & !ELIGIBLE_SYS_FLAG == 0).ok_or(Stop::Slow)?;
        if !batch.is_no_batch() || !properties.text_into(text) {
            return Err(Stop::Slow);
        }
        let pairs = read_properties(text, &self.special);
        if !pairs.is_paired() || pairs.special {
            return Err(Stop::Slow);
        }
        let options = read_options(text);
        let (topic, topic_level) = self.topic(shared, py, topic)?;
        let level = match options.ack_level {
            Some(name) => Some(level_of(name).ok_or(Stop::Slow)?),
            None => topic_level,
        };
        let lmqs = options.lmqs.map(|names| self.lmqs(shared, burst, names)).transpose()?.unwrap_or_default();
        if level.is_none() && options.dedup_key.is_none() && options.priority.is_none() && lmqs.is_empty() {
            return Err(Stop::Slow); // the frame handler of ordinary sends takes it
        }
        let mut queue = shared.queue_of(py, topic, plain_queue_id(queue)?)?;
        if options.priority.is_some() {
            let last = shared.appender.topics.list[topic].write_count.max(1) - 1;
            queue = shared.queue_of(py, topic, options.plain_priority()?.min(last))?;
        }
        let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
        shared.set_unique_key(unique_key);
        hashes.clear();
        let tag_code = shared.hash(topic, &pairs, hashes);
        let held_for = level.filter(|level| *level != STORED && pairs.waits());
        let waits = match level {
            None => burst.waits(pairs.waits())?,
            // A level that does not wait is answered as a message that does not.
            Some(_) => held_for.is_none() && burst.waits(false)?,
        };
        let dedup_key = options.dedup_key.map(std::str::from_utf8).transpose().map_err(|_| Stop::Slow)?.map(str::to_owned);
        if pairs.part_count % 2 == 0 {
            text.push(2);
        }
        text.extend_from_slice(&shared.identity.own_properties);
        if !lmqs.is_empty() {
            text.extend_from_slice(b"INNER_MULTI_QUEUE_OFFSET");
            for (number, lmq) in lmqs.iter().enumerate() {
                text.push(if number == 0 { 1 } else { b',' });
                write_decimal(text, shared.appender.room_for_entry(&mut burst.writing, *lmq)?);
            }
            text.push(2);
        }
        if text.len() > PROPERTIES_BYTES_MAX || request.body.len() > shared.max_message_bytes {
            return Err(Stop::Slow);
        }
        let message = Message {
            body: request.body,
            properties: text,
            tag_code,
            flag: flag.small().ok_or(Stop::Slow)?,
            reconsume_times: tries.small().ok_or(Stop::Slow)?,
            sys_flag,
            born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
            prepared_offset: 0,
        };
        let hooks = self.hooks.bind(py);
        if let Some(key) = &dedup_key {
            let name = &shared.appender.topics.list[topic].py_name;
            let is_new = hooks.call_method1(intern!(py, "is_new"), (name, key)).and_then(|is| is.is_truthy());
            if !shared.appender.errors.check(py, is_new)? {
                return Err(Stop::Slow);
            }
        }
        let epoch = if level.is_some() { self.epoch(burst)? } else { 0 };
        let placed = shared.appender.append(&mut burst.writing, topic, queue, &message, hashes)?;
        if !lmqs.is_empty() {
            shared.appender.add_entries(&mut burst.writing, &lmqs, &placed, tag_code).map_err(Stop::Fault)?;
        }
        shared.clear_message_ids();
        shared.add_message_id(placed.physical_offset);
        shared.appender.topics.count_request(topic);
        if let Some(key) = &dedup_key {
            let told = (
                &shared.appender.topics.list[topic].py_name,
                key,
                shared.appender.topics.queues[queue].id,
                placed.queue_offset,
                placed.physical_offset,
                placed.size,
                burst.writing.now_ms,
                std::str::from_utf8(&shared.scratch.unique_key).unwrap_or_default(),
            );
            self.hooks.bind(py).call_method1(intern!(py, "stored"), told).map_err(Stop::Fault)?;
        }
        if let Some(level) = level {
            let more = &mut shared.scratch.more;
            more.extend_from_slice(b"\",\"aerobeeAck\":\"");
            more.extend_from_slice(ACK_LEVELS[level].as_bytes());
            more.extend_from_slice(b"\",\"aerobeeEpoch\":\"");
            write_decimal(more, epoch);
            more.extend_from_slice(b"\",\"aerobeeOffset\":\"");
            write_decimal(more, placed.physical_offset + placed.size as i64);
        }
        Ok((Answer { queue, queue_offset: placed.queue_offset, waits }, held_for))
    }

    /// A topic and its ack level, or leave the message to the handlers.
    fn topic(&self, shared: &mut Shared, py: Python<'_>, topic: Value<'_>) -> Outcome<(usize, Option<usize>)> {
        let name = topic.text().ok_or(Stop::Slow)?;
        if let Some((number, level)) = shared.leveled.get(&*name) {
            return Ok((*number, Some(*level)));
        }
        if let Some(number) = shared.appender.topics.find(&name) {
            return Ok((number, None));
        }
        let text = std::str::from_utf8(&name).map_err(|_| Stop::Slow)?;
        let config = shared.appender.errors.check(py, self.find_leveled.bind(py).call1((text,)))?;
        if config.is_none() {
            return Ok((shared.topic_of(py, &name)?, None));
        }
        let attributes = config.getattr(intern!(py, "attributes")).and_then(|all| all.get_item("ack.level"));
        let level: String = shared.appender.errors.check(py, attributes.and_then(|level| level.extract()))?;
        let level = level_of(level.as_bytes()).ok_or(Stop::Slow)?;
        let number = shared.appender.add_topic(py, &config)?;
        shared.leveled.insert(name.into_owned(), (number, level));
        Ok((number, Some(level)))
    }

    /// The epoch of this broker's mastership, read once per burst.
    fn epoch(&mut self, burst: &Burst<'_>) -> Outcome<i64> {
        match self.epoch {
            Some((number, epoch)) if number == burst.number => Ok(epoch),
            _ => {
                let py = burst.writing.py;
                let epoch = self.hooks.bind(py).call_method0(intern!(py, "epoch")).and_then(|epoch| epoch.extract());
                let epoch = epoch.map_err(Stop::Fault)?;
                self.epoch = Some((burst.number, epoch));
                Ok(epoch)
            }
        }
    }
}

impl Options<'_> {
    /// The priority as a number; else it means nothing, or something else.
    fn plain_priority(&self) -> Outcome<i64> {
        let text = self.priority.filter(|text| text.len() <= PRIORITY_CHARS_MAX && text.iter().all(u8::is_ascii_digit));
        let text = text.filter(|_| !self.is_ordered).ok_or(Stop::Slow)?;
        Ok(text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
    }
}

/// The number of an ack level.
fn level_of(name: &[u8]) -> Option<usize> {
    ACK_LEVELS.iter().position(|level| level.as_bytes() == name)
}

/// Read the options of a text with separators in turn; the last of equal names counts.
fn read_options(text: &[u8]) -> Options<'_> {
    let mut found = Options::default();
    let mut pieces = text.split(|byte| matches!(byte, 1 | 2));
    while let (Some(name), Some(value)) = (pieces.next(), pieces.next()) {
        match name {
            b"ACK_LEVEL" => found.ack_level = Some(value),
            b"DEDUP_KEY" => found.dedup_key = Some(value),
            b"_SYS_MSG_PRIORITY_" => found.priority = Some(value),
            b"INNER_MULTI_DISPATCH" => found.lmqs = Some(value),
            b"__SHARDINGKEY" => found.is_ordered = true,
            _ => {}
        }
    }
    found
}
