//! Transactions: half messages (310) and one-way END_TRANSACTION (37) (aerobee/broker/fastpath/transaction.py is the
//! Python counterpart).
//!
//! Python (the transaction table) knows the open transactions. This file reads it, and reports what a frame began or
//! decided as soon as the record is in the log, so that the next frame of the burst finds it.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::constants::{
    END_TRANSACTION, FLAG_ONEWAY, HALF_TOPIC, HEAD_BYTES, ELIGIBLE_SYS_FLAG, PROPERTIES_BYTES_MAX, SEND_MESSAGE_V2,
    TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK,
};
use crate::field::{Name, Value};
use crate::outcome::{Outcome, Stop};
use crate::record::{Message, Record};
use crate::shared::{Answer, Burst, FrameHandler, Form, Gate, SHORT_NAMES, Request, Shared};
use crate::text::{NameSet, Properties, is_alphanumeric, read_properties};
use crate::topic::{Queue, Topic};

const REAL_TOPIC: &[u8] = b"\x02REAL_TOPIC\x01";
const REAL_QUEUE: &[u8] = b"\x02REAL_QID\x01";

/// The family. Its hooks are TransactionHooks of aerobee/broker/fastpath/seam.py.
pub struct Transactions {
    hooks: Py<PyAny>,
    half_topic: Py<PyAny>,
    /// Properties of half messages that are for the handlers.
    special: NameSet,
    half: Option<(usize, usize)>, // topic and queue of half messages
    turn: Option<Turn>,
}

/// State of one burst.
struct Turn {
    burst: u64,
    takes_halves: bool,
    /// None: the half queue is not of an ordinary kind.
    half: Option<(usize, usize)>,
    by_key: Py<PyDict>,
    is_changed: bool,
}

/// Further property values of a half message; the last of equal names counts.
#[derive(Default)]
struct HalfProperties<'a> {
    is_half: bool,
    group: Option<&'a [u8]>,
}

impl FrameHandler for Transactions {
    fn codes(&self) -> &'static [i64] {
        &[SEND_MESSAGE_V2, END_TRANSACTION]
    }

    fn gate(&self) -> Gate {
        Gate::Sends
    }

    /// Started and committed transactions are recorded in the table, and reported at the end of the run.
    fn is_silent(&self) -> bool {
        true
    }

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        if request.form != Form::Json {
            return Err(Stop::Slow);
        }
        if request.code == END_TRANSACTION {
            return if request.flag == FLAG_ONEWAY { self.end_one(shared, burst, request) } else { Err(Stop::Slow) };
        }
        if request.fields.get(Name::F).small().ok_or(Stop::Slow)? & TRANSACTION_MASK != TRANSACTION_PREPARED {
            return Err(Stop::Slow);
        }
        let mut text = std::mem::take(&mut shared.scratch.properties);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        let answer = self.prepare(shared, burst, request, &mut text, &mut hashes);
        shared.scratch.properties = text;
        shared.scratch.hashes = hashes;
        shared.reply(burst, request, &answer?);
        Ok(())
    }

    fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        match self.turn.take() {
            Some(turn) if turn.is_changed => self.hooks.bind(py).call_method0(intern!(py, "burst_done")).map(|_| ()),
            _ => Ok(()),
        }
    }

    fn forget_topics(&mut self) {
        self.half = None;
    }
}

impl Transactions {
    pub fn new(hooks: Py<PyAny>, half_topic: Py<PyAny>, special: HashSet<String>) -> Self {
        Self { hooks, half_topic, special: NameSet::new(special), half: None, turn: None }
    }

    /// State of this burst, read once per burst.
    fn turn(&mut self, shared: &mut Shared, burst: &Burst<'_>) -> Outcome<&mut Turn> {
        if self.turn.as_ref().is_none_or(|turn| turn.burst != burst.number) {
            let py = burst.writing.py;
            self.turn = Some(self.load_turn(shared, burst.number, py).map_err(Stop::Fault)?);
        }
        self.turn.as_mut().ok_or(Stop::Slow)
    }

    fn load_turn(&mut self, shared: &mut Shared, burst: u64, py: Python<'_>) -> PyResult<Turn> {
        let hooks = self.hooks.bind(py).clone();
        let queue = hooks.call_method0(intern!(py, "half_queue"))?;
        Ok(Turn {
            burst,
            takes_halves: hooks.call_method0(intern!(py, "takes_halves"))?.is_truthy()?,
            half: if shared.appender.is_plain_queue(&queue) { Some(self.half(shared, queue)?) } else { None },
            by_key: hooks.call_method0(intern!(py, "open_transactions"))?.cast_into::<PyDict>()?.unbind(),
            is_changed: false,
        })
    }

    /// The numbers of the half topic and of its queue. The queue is another object when the topic was deleted meanwhile.
    fn half(&mut self, shared: &mut Shared, queue: Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
        if let Some((topic, number)) = self.half {
            if shared.appender.topics.queues[number].object.is(&queue) {
                return Ok((topic, number));
            }
        }
        let py = queue.py();
        let topic = Topic::load(py, self.half_topic.bind(py))?;
        let key = (&topic.py_name, 0).into_pyobject(py)?.unbind();
        let topics = &mut shared.appender.topics;
        let number = topics.add(topic);
        topics.queues.push(Queue { object: queue.unbind(), key, id: 0, reply_start: Vec::new(), live: None });
        let half = (number, topics.queues.len() - 1);
        self.half = Some(half);
        Ok(half)
    }

    /// Store a half message.
    fn prepare(
        &mut self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        request: &Request<'_>,
        text: &mut Vec<u8>,
        hashes: &mut Vec<i32>,
    ) -> Outcome<Answer> {
        let fields = SHORT_NAMES.map(|name| request.fields.get(name));
        let [topic, queue, sys_flag, born, flag, properties, tries, batch] = fields;
        if tries.small() != Some(0) || !batch.is_no_batch() || !properties.text_into(text) {
            return Err(Stop::Slow);
        }
        let pairs = read_properties(text, &self.special);
        let own = read_half_properties(text);
        let group = own.group.filter(|group| !group.is_empty()).ok_or(Stop::Slow)?;
        let sys_flag = sys_flag.small().ok_or(Stop::Slow)?;
        if !pairs.is_paired()
            || pairs.special
            || !own.is_half
            || sys_flag & !(ELIGIBLE_SYS_FLAG | TRANSACTION_PREPARED) != 0
        {
            return Err(Stop::Slow);
        }
        let turn = self.turn(shared, burst)?;
        let (half_topic, half_queue) = turn.half.filter(|_| turn.takes_halves).ok_or(Stop::Slow)?;
        // Before the queue is looked up: a message that is refused opens none.
        let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
        let (topic, queue) = shared.find(burst.writing.py, topic, queue)?;
        shared.set_unique_key(unique_key);
        hashes.clear();
        let tag_code = shared.hash(half_topic, &pairs, hashes);
        let (is_open, waits) = (pairs.part_count % 2 == 0, burst.waits(pairs.waits())?);
        let (group, keys, tags) = (span(text, Some(group)), span(text, pairs.keys), span(text, pairs.tags));
        if is_open {
            text.push(2);
        }
        text.extend_from_slice(&shared.identity.own_properties);
        text.extend_from_slice(b"__transactionId__\x01");
        text.extend_from_slice(&shared.scratch.unique_key);
        text.extend_from_slice(REAL_TOPIC);
        text.extend_from_slice(shared.appender.topics.list[topic].name());
        text.extend_from_slice(REAL_QUEUE);
        text.extend_from_slice(shared.appender.topics.queues[queue].id.to_string().as_bytes());
        text.push(2);
        if text.len() > PROPERTIES_BYTES_MAX || request.body.len() > shared.max_message_bytes {
            return Err(Stop::Slow);
        }
        let message = Message {
            body: request.body,
            properties: text,
            tag_code,
            flag: flag.small().ok_or(Stop::Slow)?,
            sys_flag: sys_flag & !TRANSACTION_MASK,
            born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
            reconsume_times: 0,
            prepared_offset: 0,
        };
        let placed = shared.appender.append(&mut burst.writing, half_topic, half_queue, &message, hashes)?;
        shared.clear_message_ids();
        shared.add_message_id(placed.physical_offset);
        shared.appender.topics.count_request(half_topic);
        let part = |range: (usize, usize)| std::str::from_utf8(&text[range.0..range.1]).unwrap_or_default();
        let told = (
            part(group),
            std::str::from_utf8(&shared.scratch.unique_key).unwrap_or_default(),
            &shared.appender.topics.list[topic].py_name,
            placed.queue_offset,
            placed.physical_offset,
            placed.size,
            burst.writing.now_ms,
            part(keys),
            part(tags),
        );
        let py = burst.writing.py;
        if let Some(turn) = self.turn.as_mut() {
            turn.is_changed = true;
        }
        self.hooks.bind(py).call_method1(intern!(py, "began"), told).map_err(Stop::Fault)?;
        Ok(Answer { queue, queue_offset: placed.queue_offset, waits })
    }

    /// Carry out one decision about a transaction that is open and named right.
    fn end_one(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        let (py, fields) = (burst.writing.py, request.fields);
        let (group, id) = (fields.get(Name::ProducerGroup).text(), fields.get(Name::TransactionId).text());
        let (group, id) = (group.ok_or(Stop::Slow)?, id.ok_or(Stop::Slow)?);
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| Stop::Slow);
        let key = (text(&group)?, text(&id)?);
        let by_key = self.turn(shared, burst)?.by_key.clone_ref(py).into_bound(py);
        let transaction = by_key.get_item(key).map_err(Stop::Fault)?.ok_or(Stop::Slow)?;
        let number = |name: &Bound<'_, PyString>| -> Outcome<i64> {
            transaction.getattr(name).and_then(|value| value.extract()).map_err(Stop::Fault)
        };
        let physical_offset = number(intern!(py, "physical_offset"))?;
        let immunity = transaction.getattr(intern!(py, "immunity_ms")).map_err(Stop::Fault)?;
        if fields.get(Name::TranStateTableOffset).number() != Some(number(intern!(py, "queue_offset"))?)
            || fields.get(Name::CommitLogOffset).number() != Some(physical_offset)
            || !immunity.is_none()
        {
            return Err(Stop::Slow);
        }
        // Access control let this frame in by the topic that it names.
        let named = fields.get(Name::Topic);
        if !matches!(named, Value::Missing) {
            let topic = transaction.getattr(intern!(py, "topic")).map_err(Stop::Fault)?;
            let topic = topic.cast::<PyString>().map_err(|_| Stop::Slow)?.to_str().map_err(Stop::Fault)?;
            if named.text().ok_or(Stop::Slow)?.as_ref() != topic.as_bytes() {
                return Err(Stop::Slow);
            }
        }
        let told = match fields.get(Name::CommitOrRollback).number() {
            Some(TRANSACTION_COMMIT) => {
                let size = number(intern!(py, "size"))?;
                self.commit(shared, burst, &transaction, &id, physical_offset, size)?;
                intern!(py, "committed")
            }
            Some(TRANSACTION_ROLLBACK) => {
                shared.appender.has_called = true; // its op record is not to wait for the next timer
                intern!(py, "rolled_back")
            }
            _ => return Err(Stop::Slow),
        };
        if let Some(turn) = self.turn.as_mut() {
            turn.is_changed = true;
        }
        self.hooks.bind(py).call_method1(told, (transaction,)).map(|_| ()).map_err(Stop::Fault)
    }

    /// Write the committed record, cut out of the half record.
    fn commit(
        &mut self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        transaction: &Bound<'_, PyAny>,
        unique_key: &[u8],
        physical_offset: i64,
        size: i64,
    ) -> Outcome<()> {
        let py = burst.writing.py;
        // A transaction from another source has none: start-up, a check, the handlers.
        let keys_and_tag = transaction.getattr(intern!(py, "keys_and_tag")).map_err(Stop::Fault)?;
        let (keys, tags): (String, String) = keys_and_tag.extract().map_err(|_| Stop::Slow)?;
        let topic = transaction.getattr(intern!(py, "topic")).map_err(Stop::Fault)?;
        let topic: String = topic.extract().map_err(Stop::Fault)?;
        let size = usize::try_from(size).ok().filter(|size| *size > HEAD_BYTES).ok_or(Stop::Slow)?;
        let mut bytes = std::mem::take(&mut shared.scratch.body);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        let outcome = (|| {
            shared.read_record(burst, physical_offset, size, &mut bytes)?;
            let half = Record::cut(&bytes, physical_offset).filter(|half| half.topic == HALF_TOPIC).ok_or(Stop::Slow)?;
            let (properties, queue_text) = cut_destination(half.properties, topic.as_bytes()).ok_or(Stop::Slow)?;
            let own = read_properties(properties, &self.special);
            if !own.is_paired() || own.wait != Some(b"true") {
                return Err(Stop::Slow);
            }
            let plain = |raw| Value::Text { raw, escaped: false };
            let (topic, queue) = shared.find(py, plain(topic.as_bytes()), plain(queue_text))?;
            let pairs = Properties {
                unique_key: Some(unique_key),
                keys: Some(keys.as_bytes()),
                tags: Some(tags.as_bytes()),
                ..Properties::default()
            };
            hashes.clear();
            let tag_code = shared.hash(topic, &pairs, &mut hashes);
            let message = Message {
                body: half.body,
                properties,
                tag_code,
                flag: half.flag.into(),
                sys_flag: i64::from(half.sys_flag) | TRANSACTION_COMMIT,
                born_timestamp: half.born_timestamp.into(),
                reconsume_times: half.reconsume_times.into(),
                prepared_offset: physical_offset,
            };
            // The committed message has the sender of its half message, whichever client commits it.
            let ender = std::mem::replace(&mut burst.writing.born_host, half.born_host.to_vec());
            let appended = shared.appender.append(&mut burst.writing, topic, queue, &message, &hashes);
            burst.writing.born_host = ender;
            appended?;
            shared.appender.topics.count_request(topic);
            Ok(())
        })();
        shared.scratch.body = bytes;
        shared.scratch.hashes = hashes;
        outcome
    }
}

/// Position of `part` in `text`; an empty range without it.
fn span(text: &[u8], part: Option<&[u8]>) -> (usize, usize) {
    part.map_or((0, 0), |part| {
        let start = part.as_ptr() as usize - text.as_ptr() as usize;
        (start, start + part.len())
    })
}

fn read_half_properties(text: &[u8]) -> HalfProperties<'_> {
    let mut found = HalfProperties::default();
    let mut parts = text.split(|byte| matches!(byte, 1 | 2));
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        match name {
            b"TRAN_MSG" => found.is_half = value == b"true",
            b"PGROUP" => found.group = Some(value),
            _ => {}
        }
    }
    found
}

/// The properties of a half message without its last two, which say where it belongs, and the queue id of these. None for a
/// text that we did not write.
fn cut_destination<'a>(properties: &'a [u8], topic: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let text = properties.strip_suffix(b"\x02")?;
    let queue_at = text.iter().rposition(|byte| *byte == 1)? + 1;
    let before_queue = text[..queue_at].strip_suffix(REAL_QUEUE)?;
    let before_topic = before_queue.strip_suffix(topic)?.strip_suffix(REAL_TOPIC)?;
    Some((&properties[..=before_topic.len()], &text[queue_at..]))
}
