//! Transactions: half messages and one-way END_TRANSACTION (aerobee/broker/transaction/lane_core.py is the definition),
//! and the way to messages with a delay level (delayed.rs), which the lane leaves as well.
//!
//! Which transactions are open is known to Python (transaction/book.py). It is asked here, and told of what a frame
//! began or decided as soon as the record is in the log, so that the next frame of the burst finds it.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::delayed::Told;
use crate::field::{Fields, Name, Value};
use crate::json_header;
use crate::lane::{Burst, FLAG_ONEWAY, Form, Outcome, SEND_MESSAGE_V2, State, Stop, int};
use crate::send::{
    Answer, BORN_HOST_V6, LETTERS, MAGIC_V1, Message, ORDINARY_SYS_FLAG, PROPERTIES_BYTES_MAX, STORE_HOST_V6,
};
use crate::text::{Properties, is_alphanumeric, read_properties};
use crate::topic::{Queue, Topic};

const END_TRANSACTION: i64 = 37;
const END_START: &[u8] = b"{\"code\":37,";
const SEND_START: &[u8] = b"{\"code\":310,";
const MASK: i64 = 0xC;
const PREPARED: i64 = 0x4;
const COMMIT: i64 = 0x8;
const ROLLBACK: i64 = 0xC;
const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";
const REAL_TOPIC: &[u8] = b"\x02REAL_TOPIC\x01";
const REAL_QUEUE: &[u8] = b"\x02REAL_QID\x01";
const WAIT_TRUE: &[u8] = b"WAIT\x01true\x02";
const HEAD_BYTES: usize = 88; // of a record with two IPv4 hosts, up to its body

/// What a burst of transactions asks and tells.
pub struct Turn<'py> {
    pub takes_halves: bool,
    pub takes_levels: bool,
    pub by_key: Bound<'py, PyDict>,
    pub half: (usize, usize),
    pub began: Bound<'py, PyAny>,
    pub committed: Bound<'py, PyAny>,
    pub rolled_back: Bound<'py, PyAny>,
    pub told: Told<'py>,
}

/// What the properties of a half message say beside what is read of every message; of equal names the last counts.
#[derive(Default)]
struct HalfProperties<'a> {
    is_half: bool,
    group: Option<&'a [u8]>,
    has_immunity: bool,
}

/// The parts of a half record that its commit is made of.
struct HalfRecord<'a> {
    flag: i32,
    sys_flag: i32,
    born_timestamp: i64,
    born_host: &'a [u8],
    reconsume_times: i32,
    body: &'a [u8],
    properties: &'a [u8],
    queue_text: &'a [u8],
}

impl State {
    /// The numbers of the half topic and of its queue in this lane's lists. The queue is another object when the
    /// topic was deleted meanwhile.
    pub fn half(&mut self, topic: &Bound<'_, PyAny>, queue: Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
        if let Some((topic, number)) = self.half {
            if self.queues[number].object.is(&queue) {
                return Ok((topic, number));
            }
        }
        let py = queue.py();
        let topic = Topic::load(py, topic)?;
        let key = (&topic.py_name, 0).into_pyobject(py)?.unbind();
        self.topics.push(topic);
        self.queues.push(Queue { object: queue.unbind(), key, id: 0, reply_start: Vec::new(), live: None });
        let half = (self.topics.len() - 1, self.queues.len() - 1);
        self.half = Some(half);
        Ok(half)
    }

    /// One burst, as State::burst.
    #[allow(clippy::too_many_arguments)]
    pub fn transactions<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
        position: usize,
        shift: usize,
        born_host: &[u8],
        now_ms: i64,
        turn: &Turn<'py>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut burst = self.begin(py, born_host, now_ms)?;
        let (used, _, fault) = self.frames(&mut burst, data, position, |state, burst, kind, header, body| {
            state.transaction_frame(burst, turn, kind, header, body)
        });
        let puts = self.end(&mut burst);
        if let Some(fault) = fault {
            return Err(fault);
        }
        let (replies, held) = (PyBytes::new(py, &burst.replies), PyBytes::new(py, &burst.held));
        self.keep(burst.replies);
        (replies, used + shift, held, puts?).into_pyobject(py)
    }

    fn transaction_frame(
        &mut self,
        burst: &mut Burst<'_>,
        turn: &Turn<'_>,
        kind: u8,
        header: &[u8],
        body: &[u8],
    ) -> Outcome<()> {
        let is_ours = header.starts_with(END_START) || header.starts_with(SEND_START);
        if kind != 0 || !is_ours {
            return Err(Stop::Slow);
        }
        let mut fields = Fields::new();
        let read = json_header::parse(header, &mut fields).filter(|read| read.has_fields).ok_or(Stop::Slow)?;
        let (code, flag, opaque) = (int(read.code)?, int(read.flag)?, int(read.opaque)?);
        match (code, flag) {
            (END_TRANSACTION, FLAG_ONEWAY) => self.end_one(burst, turn, &fields),
            (SEND_MESSAGE_V2, 0 | FLAG_ONEWAY) if i32::try_from(opaque).is_ok() => {
                let is_half = fields.get(Name::F).small().ok_or(Stop::Slow)? & MASK == PREPARED;
                let answer = match is_half {
                    true if turn.takes_halves => self.prepare(burst, turn, &fields, body)?,
                    false if turn.takes_levels => self.delayed(burst, &turn.told, &fields, body)?,
                    _ => return Err(Stop::Slow),
                };
                if flag == 0 {
                    self.reply(burst, Form::Json, opaque, &answer);
                }
                self.scratch.recall_handle.clear();
                Ok(())
            }
            _ => Err(Stop::Slow),
        }
    }

    /// Store a half message.
    fn prepare(
        &mut self,
        burst: &mut Burst<'_>,
        turn: &Turn<'_>,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Outcome<Answer> {
        let [topic, queue, sys_flag, born, flag, properties, tries, batch] = LETTERS.map(|name| fields.get(name));
        if tries.small() != Some(0) || !batch.is_no_batch() {
            return Err(Stop::Slow);
        }
        let (topic, queue) = self.place(burst, topic, queue)?;
        let mut text = std::mem::take(&mut self.scratch.properties);
        let mut hashes = std::mem::take(&mut self.scratch.hashes);
        let outcome = (|| {
            if !properties.text_into(&mut text) {
                return Err(Stop::Slow);
            }
            let pairs = read_properties(&text, &self.special);
            let own = read_half_properties(&text);
            let group = own.group.filter(|group| !group.is_empty()).ok_or(Stop::Slow)?;
            let sys_flag = sys_flag.small().ok_or(Stop::Slow)?;
            if !pairs.is_paired()
                || pairs.special
                || pairs.delay
                || !own.is_half
                || own.has_immunity
                || sys_flag & !(ORDINARY_SYS_FLAG | PREPARED) != 0
                || sys_flag & MASK != PREPARED
            {
                return Err(Stop::Slow);
            }
            let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
            self.scratch.unique_key.clear();
            self.scratch.unique_key.extend_from_slice(unique_key);
            hashes.clear();
            let tag_code = self.hash(turn.half.0, &pairs, &mut hashes);
            let (is_open, waits) = (pairs.part_count % 2 == 0, pairs.wait != Some(b"false"));
            let (group, keys, tags) = (span(&text, Some(group)), span(&text, pairs.keys), span(&text, pairs.tags));
            if is_open {
                text.push(2);
            }
            text.extend_from_slice(&self.own_properties);
            text.extend_from_slice(b"__transactionId__\x01");
            text.extend_from_slice(&self.scratch.unique_key);
            text.extend_from_slice(REAL_TOPIC);
            text.extend_from_slice(&self.topics[topic].field[1..]);
            text.extend_from_slice(REAL_QUEUE);
            text.extend_from_slice(self.queues[queue].id.to_string().as_bytes());
            text.push(2);
            if text.len() > PROPERTIES_BYTES_MAX || body.len() > burst.max_message_bytes {
                return Err(Stop::Slow);
            }
            let message = Message {
                body,
                properties: &text,
                tag_code,
                flag: flag.small().ok_or(Stop::Slow)?,
                sys_flag: sys_flag & !MASK,
                born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
                reconsume_times: 0,
                prepared_offset: 0,
            };
            self.scratch.message_ids.clear();
            let queue_offset = self.append(burst, turn.half.0, turn.half.1, &message, &hashes)?;
            self.topics[turn.half.0].request_count += 1;
            let size = self.log(burst).map_err(Stop::Fault)?.end - burst.last_offset;
            let part = |range: (usize, usize)| std::str::from_utf8(&text[range.0..range.1]).unwrap_or_default();
            let unique_key = std::str::from_utf8(&self.scratch.unique_key).unwrap_or_default();
            let told = (
                part(group), unique_key, &self.topics[topic].py_name, queue_offset, burst.last_offset, size, part(keys),
                part(tags),
            );
            turn.began.call1(told).map_err(Stop::Fault)?;
            Ok(Answer { queue, queue_offset, waits: self.holds && waits })
        })();
        self.scratch.properties = text;
        self.scratch.hashes = hashes;
        outcome
    }

    /// Carry out one decision about a transaction that is open and named right.
    fn end_one(&mut self, burst: &mut Burst<'_>, turn: &Turn<'_>, fields: &Fields<'_>) -> Outcome<()> {
        let py = burst.py;
        let (group, id) = (fields.get(Name::ProducerGroup).text(), fields.get(Name::TransactionId).text());
        let (group, id) = (group.ok_or(Stop::Slow)?, id.ok_or(Stop::Slow)?);
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| Stop::Slow);
        let key = (text(&group)?, text(&id)?);
        let transaction = turn.by_key.get_item(key).map_err(Stop::Fault)?.ok_or(Stop::Slow)?;
        let number = |name: &Bound<'_, pyo3::types::PyString>| -> Outcome<i64> {
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
        match fields.get(Name::CommitOrRollback).number() {
            Some(COMMIT) => {
                let size = number(intern!(py, "size"))?;
                self.commit(burst, &transaction, &id, physical_offset, size)?;
                turn.committed.call1((transaction,)).map_err(Stop::Fault)?;
            }
            Some(ROLLBACK) => {
                turn.rolled_back.call1((transaction,)).map_err(Stop::Fault)?;
            }
            _ => return Err(Stop::Slow),
        }
        Ok(())
    }

    /// Write the committed record, cut out of the half record.
    fn commit(
        &mut self,
        burst: &mut Burst<'_>,
        transaction: &Bound<'_, PyAny>,
        unique_key: &[u8],
        physical_offset: i64,
        size: i64,
    ) -> Outcome<()> {
        let py = burst.py;
        // One that came another way has no marks: from a start, a check, the handlers.
        let marks = transaction.getattr(intern!(py, "marks")).map_err(Stop::Fault)?;
        let (keys, tags): (String, String) = marks.extract().map_err(|_| Stop::Slow)?;
        let topic = transaction.getattr(intern!(py, "topic")).map_err(Stop::Fault)?;
        let topic: String = topic.extract().map_err(Stop::Fault)?;
        let size = usize::try_from(size).ok().filter(|size| *size > HEAD_BYTES).ok_or(Stop::Slow)?;
        let mut bytes = std::mem::take(&mut self.scratch.body);
        let mut hashes = std::mem::take(&mut self.scratch.hashes);
        let outcome = (|| {
            self.read_record(burst, physical_offset, size, &mut bytes)?;
            let half = cut_half(&bytes, physical_offset, &topic).ok_or(Stop::Slow)?;
            let plain = |raw| Value::Text { raw, escaped: false };
            let (topic, queue) = self.place(burst, plain(topic.as_bytes()), plain(half.queue_text))?;
            let pairs = Properties {
                unique_key: Some(unique_key),
                keys: Some(keys.as_bytes()),
                tags: Some(tags.as_bytes()),
                ..Properties::default()
            };
            hashes.clear();
            let tag_code = self.hash(topic, &pairs, &mut hashes);
            let message = Message {
                body: half.body,
                properties: half.properties,
                tag_code,
                flag: half.flag.into(),
                sys_flag: i64::from(half.sys_flag) | COMMIT,
                born_timestamp: half.born_timestamp.into(),
                reconsume_times: half.reconsume_times.into(),
                prepared_offset: physical_offset,
            };
            // The message's sender is that of its half message, whoever ends it.
            let ender = std::mem::replace(&mut burst.born_host, half.born_host.to_vec());
            let appended = self.append(burst, topic, queue, &message, &hashes);
            burst.born_host = ender;
            appended?;
            self.topics[topic].request_count += 1;
            Ok(())
        })();
        self.scratch.body = bytes;
        self.scratch.hashes = hashes;
        outcome
    }

    /// Put the `size` bytes at `physical_offset` of the log into `out`.
    fn read_record(
        &mut self,
        burst: &mut Burst<'_>,
        physical_offset: i64,
        size: usize,
        out: &mut Vec<u8>,
    ) -> Outcome<()> {
        out.clear();
        let log = self.log(burst).map_err(Stop::Fault)?;
        if log.window.append_to(physical_offset - log.base, size, out) {
            return Ok(());
        }
        self.settle(burst).map_err(Stop::Fault)?;
        let py = burst.py;
        let read = self.log_object.bind(py).call_method1(intern!(py, "read"), (physical_offset, size));
        let read = self.check(py, read)?;
        out.extend_from_slice(read.cast::<PyBytes>().map_err(|_| Stop::Slow)?.as_bytes());
        Ok(())
    }
}

/// Where `part` stands in `text`; an empty place when there is none.
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
            b"CHECK_IMMUNITY_TIME_IN_SECONDS" => found.has_immunity = true,
            _ => {}
        }
    }
    found
}

/// Take a half record of ours apart; None for any other bytes.
fn cut_half<'a>(record: &'a [u8], physical_offset: i64, topic: &str) -> Option<HalfRecord<'a>> {
    let word = |at: usize| Some(i32::from_be_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(i64::from_be_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let sys_flag = word(36)?;
    if usize::try_from(word(0)?).ok()? != record.len()
        || word(4)? as u32 != MAGIC_V1
        || long(28)? != physical_offset
        || i64::from(sys_flag) & (BORN_HOST_V6 | STORE_HOST_V6) != 0
    {
        return None;
    }
    let body_end = HEAD_BYTES + usize::try_from(word(84)?).ok()?;
    let rest = record.get(body_end..)?.strip_prefix(&[HALF_TOPIC.len() as u8])?.strip_prefix(HALF_TOPIC)?;
    let text = rest.get(2..)?;
    // Ours ends with where it belongs.
    let topic_at = text.windows(REAL_TOPIC.len()).rposition(|window| window == REAL_TOPIC)?;
    let properties = &text[..=topic_at];
    let queue_text =
        text[topic_at..].strip_prefix(REAL_TOPIC)?.strip_prefix(topic.as_bytes())?.strip_prefix(REAL_QUEUE)?;
    if !properties.windows(WAIT_TRUE.len()).any(|window| window == WAIT_TRUE) {
        return None;
    }
    Some(HalfRecord {
        flag: word(16)?,
        sys_flag,
        born_timestamp: long(40)?,
        born_host: &record[48..56],
        reconsume_times: word(72)?,
        body: &record[HEAD_BYTES..body_end],
        properties,
        queue_text: queue_text.strip_suffix(b"\x02")?,
    })
}
