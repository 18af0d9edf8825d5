//! Messages with a delay level, as send.py stores them with the hook of aerobee/broker/delay_level.py: in the queue of
//! their level of SCHEDULE_TOPIC_XXXX, with the time at which they are due in the queue entry.

use std::cell::Cell;

use pyo3::intern;
use pyo3::prelude::*;

use crate::field::Fields;
use crate::lane::{Burst, Outcome, State, Stop};
use crate::send::{Answer, LETTERS, Message, ORDINARY_SYS_FLAG, PROPERTIES_BYTES_MAX};
use crate::text::{is_alphanumeric, read_properties};
use crate::topic::{Queue, Topic};

/// Where the messages of each level go; kept while topics do not change.
pub struct Levels {
    topic: Py<PyAny>,
    delays_ms: Vec<i64>,
    number: Option<usize>,
    queues: Vec<Option<usize>>,
}

/// Who is to know that a level has got messages; once in a burst, for they are all due at the same time.
pub struct Told<'py> {
    pub arrived: Bound<'py, PyAny>,
    pub levels: Cell<u128>,
}

impl Levels {
    pub fn new(topic: Py<PyAny>, delays_ms: Vec<i64>) -> Self {
        let queues = vec![None; delays_ms.len()];
        Self { topic, delays_ms, number: None, queues }
    }

    pub fn forget(&mut self) {
        self.number = None;
        self.queues.fill(None);
    }
}

impl State {
    /// Store one message for its level. Every property text that is not quite ordinary is for the handlers.
    pub fn delayed(
        &mut self,
        burst: &mut Burst<'_>,
        told: &Told<'_>,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Outcome<Answer> {
        let [topic, queue, sys_flag, born, flag, properties, tries, batch] = LETTERS.map(|name| fields.get(name));
        if !batch.is_no_batch() {
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
            if !pairs.is_paired() || pairs.special || !pairs.delay {
                return Err(Stop::Slow);
            }
            let level = level_of(&text).ok_or(Stop::Slow)?;
            let (schedule, level_queue, delay_ms) = self.level(burst, level)?;
            let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
            let sys_flag = sys_flag.small().filter(|flag| flag & !ORDINARY_SYS_FLAG == 0).ok_or(Stop::Slow)?;
            self.scratch.unique_key.clear();
            self.scratch.unique_key.extend_from_slice(unique_key);
            hashes.clear();
            self.hash(schedule, &pairs, &mut hashes);
            let (is_open, waits) = (pairs.part_count % 2 == 0, pairs.wait != Some(b"false"));
            if is_open {
                text.push(2);
            }
            text.extend_from_slice(&self.own_properties);
            text.extend_from_slice(b"REAL_TOPIC\x01");
            text.extend_from_slice(&self.topics[topic].field[1..]);
            text.extend_from_slice(b"\x02REAL_QID\x01");
            text.extend_from_slice(self.queues[queue].id.to_string().as_bytes());
            text.push(2);
            if text.len() > PROPERTIES_BYTES_MAX || body.len() > burst.max_message_bytes {
                return Err(Stop::Slow);
            }
            let due_ms = burst.now_ms + delay_ms;
            let message = Message {
                body,
                properties: &text,
                tag_code: due_ms,
                flag: flag.small().ok_or(Stop::Slow)?,
                sys_flag,
                born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
                reconsume_times: tries.small().ok_or(Stop::Slow)?,
                prepared_offset: 0,
            };
            self.scratch.message_ids.clear();
            let queue_offset = self.append(burst, schedule, level_queue, &message, &hashes)?;
            self.count_for(burst, schedule, topic).map_err(Stop::Fault)?;
            let bit = 1_u128 << (level - 1);
            if told.levels.get() & bit == 0 {
                told.levels.set(told.levels.get() | bit);
                told.arrived.call1((level - 1, queue_offset + 1, due_ms)).map_err(Stop::Fault)?;
            }
            Ok(Answer { queue, queue_offset, waits: self.holds && waits })
        })();
        self.scratch.properties = text;
        self.scratch.hashes = hashes;
        outcome
    }

    /// The numbers of the schedule topic and of the level's queue in this lane's lists, and the level's delay.
    fn level(&mut self, burst: &Burst<'_>, level: usize) -> Outcome<(usize, usize, i64)> {
        let py = burst.py;
        let levels = self.levels.as_ref().ok_or(Stop::Slow)?;
        let delay_ms = *levels.delays_ms.get(level - 1).ok_or(Stop::Slow)?;
        if let (Some(number), Some(queue)) = (levels.number, levels.queues[level - 1]) {
            return Ok((number, queue, delay_ms));
        }
        let known = levels.number;
        let number = match known {
            Some(number) => number,
            None => {
                let topic = Topic::load(py, levels.topic.bind(py));
                let topic = self.check(py, topic)?;
                self.topics.push(topic);
                self.topics.len() - 1
            }
        };
        let name = self.topics[number].py_name.clone_ref(py);
        let object =
            self.check(py, self.store.bind(py).call_method1(intern!(py, "queue"), (&name, level - 1)))?;
        if !object.get_type().is(self.queue_type.bind(py)) {
            return Err(Stop::Slow);
        }
        let key = (name, level - 1).into_pyobject(py).map_err(Stop::Fault)?.unbind();
        let id = i32::try_from(level - 1).map_err(|_| Stop::Slow)?;
        self.queues.push(Queue { object: object.unbind(), key, id, reply_start: Vec::new(), live: None });
        let queue = self.queues.len() - 1;
        let levels = self.levels.as_mut().ok_or(Stop::Slow)?;
        levels.number = Some(number);
        levels.queues[level - 1] = Some(queue);
        Ok((number, queue, delay_ms))
    }

    /// What was just stored in `stored` counts for the topic that it was sent to.
    fn count_for(&mut self, burst: &mut Burst<'_>, stored: usize, topic: usize) -> PyResult<()> {
        let size = (self.log(burst)?.end - burst.last_offset) as u64;
        self.topics[stored].count -= 1;
        self.topics[stored].byte_count -= size;
        if self.topics[topic].count == 0 {
            burst.touched.push(topic);
        }
        let counts = &mut self.topics[topic];
        counts.count += 1;
        counts.byte_count += size;
        counts.request_count += 1;
        Ok(())
    }
}

/// The level that a property text asks for, when it is written as we would write it and nothing asks for a transaction.
fn level_of(text: &[u8]) -> Option<usize> {
    let mut level = None;
    let mut parts = text.split(|byte| matches!(byte, 1 | 2));
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        match name {
            b"DELAY" => level = Some(value),
            b"TRAN_MSG" | b"PGROUP" => return None,
            _ => {}
        }
    }
    let level = level.filter(|level| !level.starts_with(b"0") && level.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(level).ok()?.parse().ok().filter(|level| (1..=128).contains(level))
}
