//! Messages with a delay level or a time, as send.py stores them with the hooks of aerobee/broker/send/delay_level.py and
//! aerobee/broker/timer/timer_hook.py (aerobee/broker/lane/delayed.py is the definition): in the queue of their level of
//! SCHEDULE_TOPIC_XXXX, with the time at which they are due in the queue entry, or in queue 0 of rmq_sys_wheel_timer.

use std::cell::Cell;

use pyo3::intern;
use pyo3::prelude::*;

use crate::field::Fields;
use crate::lane::{Burst, Outcome, State, Stop};
use crate::send::{Answer, LETTERS, Message, ORDINARY_SYS_FLAG, PROPERTIES_BYTES_MAX};
use crate::text::{NameSet, is_alphanumeric, read_properties};
use crate::topic::{Queue, Topic};

/// Where the messages of each level go; kept while topics do not change.
pub struct Levels {
    topic: Py<PyAny>,
    delays_ms: Vec<i64>,
    number: Option<usize>,
    queues: Vec<Option<usize>>,
    timer: Timer,
    /// Properties of messages that are for the handlers.
    special: NameSet,
}

/// Where timer messages go.
struct Timer {
    topic: Py<PyAny>,
    place: Option<(usize, usize)>,
    broker_name: Vec<u8>,
}

/// Who is to know that a level or the timer has got messages; once in a burst is enough, for those of a level are all due
/// at the same time.
pub struct Told<'py> {
    pub arrived: Bound<'py, PyAny>,
    pub levels: Cell<u128>,
    pub timer_arrived: Bound<'py, PyAny>,
    pub timer: Cell<bool>,
    /// Precision and longest delay, ms; None: timer messages are for the handlers.
    pub timer_limits: Option<(i64, i64)>,
}

/// What a message asks for.
enum Wish {
    Level(usize),
    /// When it is to be delivered, ms.
    At(i64),
}

impl Levels {
    pub fn new(
        topic: Py<PyAny>,
        delays_ms: Vec<i64>,
        timer_topic: Py<PyAny>,
        broker_name: String,
        special: NameSet,
    ) -> Self {
        let queues = vec![None; delays_ms.len()];
        let timer = Timer { topic: timer_topic, place: None, broker_name: broker_name.into_bytes() };
        Self { topic, delays_ms, number: None, queues, timer, special }
    }

    pub fn forget(&mut self) {
        self.number = None;
        self.queues.fill(None);
        self.timer.place = None;
    }
}

impl State {
    /// Store one message for its level or its time. Every property text that is not quite ordinary is for the handlers.
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
            let pairs = read_properties(&text, &self.levels.as_ref().ok_or(Stop::Slow)?.special);
            if !pairs.is_paired() || pairs.special {
                return Err(Stop::Slow);
            }
            let wish = wish_of(&text, burst.now_ms).ok_or(Stop::Slow)?;
            let (stored, stored_queue) = match wish {
                Wish::Level(level) => self.level(burst, level)?,
                Wish::At(_) if told.timer_limits.is_some() => self.timer_place(burst)?,
                Wish::At(_) => return Err(Stop::Slow),
            };
            let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
            let sys_flag = sys_flag.small().filter(|flag| flag & !ORDINARY_SYS_FLAG == 0).ok_or(Stop::Slow)?;
            self.scratch.unique_key.clear();
            self.scratch.unique_key.extend_from_slice(unique_key);
            hashes.clear();
            let tag_code = self.hash(stored, &pairs, &mut hashes);
            let (is_open, waits) = (pairs.part_count % 2 == 0, pairs.wait != Some(b"false"));
            if is_open {
                text.push(2);
            }
            text.extend_from_slice(&self.own_properties);
            let mut out_ms = 0;
            let code = match wish {
                Wish::Level(level) => burst.now_ms + self.delay_ms(level)?,
                Wish::At(deliver_ms) => {
                    let (precision_ms, longest_ms) = told.timer_limits.ok_or(Stop::Slow)?;
                    if deliver_ms <= burst.now_ms || deliver_ms - burst.now_ms > longest_ms || precision_ms < 1 {
                        return Err(Stop::Slow);
                    }
                    // A slot that begins at T holds what is due in (T, T + precision].
                    out_ms = (deliver_ms - 1).div_euclid(precision_ms) * precision_ms;
                    text.extend_from_slice(b"TIMER_OUT_MS\x01");
                    text.extend_from_slice(out_ms.to_string().as_bytes());
                    text.push(2);
                    tag_code
                }
            };
            text.extend_from_slice(b"REAL_TOPIC\x01");
            text.extend_from_slice(&self.topics[topic].field[1..]);
            text.extend_from_slice(b"\x02REAL_QID\x01");
            text.extend_from_slice(self.queues[queue].id.to_string().as_bytes());
            text.push(2);
            if text.len() > PROPERTIES_BYTES_MAX || body.len() > burst.max_message_bytes {
                return Err(Stop::Slow);
            }
            let message = Message {
                body,
                properties: &text,
                tag_code: code,
                flag: flag.small().ok_or(Stop::Slow)?,
                sys_flag,
                born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
                reconsume_times: tries.small().ok_or(Stop::Slow)?,
                prepared_offset: 0,
            };
            self.scratch.message_ids.clear();
            let queue_offset = self.append(burst, stored, stored_queue, &message, &hashes)?;
            self.count_for(burst, stored, topic).map_err(Stop::Fault)?;
            match wish {
                Wish::Level(level) => {
                    let bit = 1_u128 << (level - 1);
                    if told.levels.get() & bit == 0 {
                        told.levels.set(told.levels.get() | bit);
                        told.arrived.call1((level - 1, queue_offset + 1, code)).map_err(Stop::Fault)?;
                    }
                }
                Wish::At(_) => {
                    if !told.timer.replace(true) {
                        told.timer_arrived.call0().map_err(Stop::Fault)?;
                    }
                    self.set_recall_handle(topic, out_ms + 1);
                }
            }
            Ok(Answer { queue, queue_offset, waits: self.holds && waits })
        })();
        self.scratch.properties = text;
        self.scratch.hashes = hashes;
        outcome
    }

    fn delay_ms(&self, level: usize) -> Outcome<i64> {
        let levels = self.levels.as_ref().ok_or(Stop::Slow)?;
        levels.delays_ms.get(level - 1).copied().ok_or(Stop::Slow)
    }

    /// Put the handle by which the message can be recalled into the scratch buffer (remoting/recall_handle.py).
    fn set_recall_handle(&mut self, topic: usize, timestamp_ms: i64) {
        let Some(levels) = self.levels.as_ref() else { return };
        let mut text = b"v1 ".to_vec();
        text.extend_from_slice(&self.topics[topic].field[1..]);
        text.push(b' ');
        text.extend_from_slice(&levels.timer.broker_name);
        text.push(b' ');
        text.extend_from_slice(timestamp_ms.to_string().as_bytes());
        text.push(b' ');
        text.extend_from_slice(&self.scratch.unique_key);
        let out = &mut self.scratch.recall_handle;
        out.clear();
        write_base64(&text, out);
    }

    /// The numbers of the timer topic and of its queue in this lane's lists.
    fn timer_place(&mut self, burst: &Burst<'_>) -> Outcome<(usize, usize)> {
        let py = burst.py;
        let timer = &self.levels.as_ref().ok_or(Stop::Slow)?.timer;
        if let Some(place) = timer.place {
            return Ok(place);
        }
        let topic = Topic::load(py, timer.topic.bind(py));
        let topic = self.check(py, topic)?;
        self.topics.push(topic);
        let number = self.topics.len() - 1;
        let place = (number, self.stored_queue(burst, number, 0)?);
        self.levels.as_mut().ok_or(Stop::Slow)?.timer.place = Some(place);
        Ok(place)
    }

    /// The number of a queue of a system topic, new in this lane's lists.
    fn stored_queue(&mut self, burst: &Burst<'_>, topic: usize, id: i32) -> Outcome<usize> {
        let py = burst.py;
        let name = self.topics[topic].py_name.clone_ref(py);
        let object = self.check(py, self.store.bind(py).call_method1(intern!(py, "queue"), (&name, id)))?;
        if !object.get_type().is(self.queue_type.bind(py)) {
            return Err(Stop::Slow);
        }
        let key = (name, id).into_pyobject(py).map_err(Stop::Fault)?.unbind();
        self.queues.push(Queue { object: object.unbind(), key, id, reply_start: Vec::new(), live: None });
        Ok(self.queues.len() - 1)
    }

    /// The numbers of the schedule topic and of the level's queue in this lane's lists.
    fn level(&mut self, burst: &Burst<'_>, level: usize) -> Outcome<(usize, usize)> {
        let py = burst.py;
        self.delay_ms(level)?;
        let levels = self.levels.as_ref().ok_or(Stop::Slow)?;
        if let (Some(number), Some(queue)) = (levels.number, levels.queues[level - 1]) {
            return Ok((number, queue));
        }
        let number = match levels.number {
            Some(number) => number,
            None => {
                let topic = Topic::load(py, levels.topic.bind(py));
                let topic = self.check(py, topic)?;
                self.topics.push(topic);
                self.topics.len() - 1
            }
        };
        let queue = self.stored_queue(burst, number, i32::try_from(level - 1).map_err(|_| Stop::Slow)?)?;
        let levels = self.levels.as_mut().ok_or(Stop::Slow)?;
        levels.number = Some(number);
        levels.queues[level - 1] = Some(queue);
        Ok((number, queue))
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

/// What a property text asks for, when it is written as we would write it, once, and nothing asks for a transaction.
fn wish_of(text: &[u8], now_ms: i64) -> Option<Wish> {
    let mut found = None;
    let mut parts = text.split(|byte| matches!(byte, 1 | 2));
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        let wish = match name {
            b"DELAY" => Wish::Level(level_of(value)?),
            b"TIMER_DELAY_SEC" => Wish::At(digits(value)?.checked_mul(1000)?.checked_add(now_ms)?),
            b"TIMER_DELAY_MS" => Wish::At(digits(value)?.checked_add(now_ms)?),
            b"TIMER_DELIVER_MS" => Wish::At(digits(value)?),
            b"TRAN_MSG" | b"PGROUP" => return None,
            _ => continue,
        };
        if found.replace(wish).is_some() {
            return None;
        }
    }
    found
}

fn level_of(text: &[u8]) -> Option<usize> {
    let level = digits(text).filter(|level| !text.starts_with(b"0") && (1..=128).contains(level))?;
    usize::try_from(level).ok()
}

/// A number of at most 18 digits.
fn digits(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 18 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}

/// Base64 with the URL-safe alphabet, padded.
fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= three.len() { letter } else { b'=' });
        }
    }
}
