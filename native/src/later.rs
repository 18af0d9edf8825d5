//! Messages with a delay level or a time, as send.py stores them with the hooks of aerobee/broker/send/delay_level.py and
//! aerobee/broker/timer/timer_hook.py (aerobee/broker/fastpath/later.py is the definition): in the queue of their level of
//! SCHEDULE_TOPIC_XXXX, with the time at which they are due in the queue entry, or in queue 0 of rmq_sys_wheel_timer.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;

use crate::outcome::{Outcome, Stop, note_failed_callback};
use crate::record::Message;
use crate::send::SEND_MESSAGE_V2;
use crate::shared::{
    Answer, Burst, Family, Form, Gate, LETTERS, ORDINARY_SYS_FLAG, PROPERTIES_BYTES_MAX, Request, Shared,
};
use crate::text::{NameSet, is_alphanumeric, read_properties};

/// The family. Its hooks are LaterHooks of aerobee/broker/fastpath/seam.py.
pub struct Later {
    hooks: Py<PyAny>,
    schedule_topic: Py<PyAny>,
    timer_topic: Py<PyAny>,
    broker_name: Vec<u8>,
    delays_ms: Vec<i64>,
    /// Properties of messages that are for the handlers.
    special: NameSet,
    schedule_number: Option<usize>,
    level_queues: Vec<Option<usize>>,
    timer_place: Option<(usize, usize)>,
    turn: Option<Turn>,
}

/// What holds for one burst.
struct Turn {
    burst: u64,
    is_allowed: bool,
    /// Precision and longest delay, ms; None: timer messages are for the handlers.
    timer_limits: Option<(i64, i64)>,
    /// Levels whose delivery was told of their messages: once is enough, for those of a level are all due at the same time.
    told_levels: u128,
    told_timer: bool,
}

/// What a message asks for.
enum Wish {
    Level(usize),
    /// When it is to be delivered, ms.
    At(i64),
}

impl Family for Later {
    fn codes(&self) -> &'static [i64] {
        &[SEND_MESSAGE_V2]
    }

    fn gate(&self) -> Gate {
        Gate::Sends
    }

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        if request.form != Form::Json {
            return Err(Stop::Slow);
        }
        let mut text = std::mem::take(&mut shared.scratch.properties);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        let answer = self.store(shared, burst, request, &mut text, &mut hashes);
        shared.scratch.properties = text;
        shared.scratch.hashes = hashes;
        if let Ok(answer) = &answer {
            shared.reply(burst, request, answer);
        }
        shared.scratch.recall_handle.clear();
        answer.map(|_| ())
    }

    fn forget_topics(&mut self) {
        self.schedule_number = None;
        self.level_queues.fill(None);
        self.timer_place = None;
    }
}

impl Later {
    pub fn new(
        hooks: Py<PyAny>,
        schedule_topic: Py<PyAny>,
        timer_topic: Py<PyAny>,
        broker_name: String,
        delays_ms: Vec<i64>,
        special: HashSet<String>,
    ) -> Self {
        Self {
            hooks,
            schedule_topic,
            timer_topic,
            broker_name: broker_name.into_bytes(),
            special: NameSet::new(special),
            schedule_number: None,
            level_queues: vec![None; delays_ms.len()],
            delays_ms,
            timer_place: None,
            turn: None,
        }
    }

    /// What holds for this burst, asked once in it.
    fn turn(&mut self, burst: &Burst<'_>) -> Outcome<&mut Turn> {
        if self.turn.as_ref().is_none_or(|turn| turn.burst != burst.number) {
            let py = burst.writing.py;
            let hooks = self.hooks.bind(py);
            let is_allowed = hooks.call_method0(intern!(py, "takes_later")).and_then(|is| is.is_truthy());
            let limits = hooks.call_method0(intern!(py, "timer_limits")).and_then(|limits| limits.extract());
            self.turn = Some(Turn {
                burst: burst.number,
                is_allowed: is_allowed.map_err(Stop::Fault)?,
                timer_limits: limits.map_err(Stop::Fault)?,
                told_levels: 0,
                told_timer: false,
            });
        }
        self.turn.as_mut().ok_or(Stop::Slow)
    }

    /// Store one message for its level or its time. Every property text that is not quite ordinary is for the handlers.
    fn store(
        &mut self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        request: &Request<'_>,
        text: &mut Vec<u8>,
        hashes: &mut Vec<i32>,
    ) -> Outcome<Answer> {
        let fields = LETTERS.map(|name| request.fields.get(name));
        let [topic, queue, sys_flag, born, flag, properties, tries, batch] = fields;
        if !batch.is_no_batch() || !properties.text_into(text) {
            return Err(Stop::Slow);
        }
        let pairs = read_properties(text, &self.special);
        if !pairs.is_paired() || pairs.special {
            return Err(Stop::Slow);
        }
        let wish = wish_of(text, burst.writing.now_ms).ok_or(Stop::Slow)?;
        let turn = self.turn(burst)?;
        let limits = turn.timer_limits;
        if !turn.is_allowed {
            return Err(Stop::Slow);
        }
        let py = burst.writing.py;
        let (topic, queue) = shared.find(py, topic, queue)?;
        let (stored, stored_queue) = match wish {
            Wish::Level(level) => self.level(shared, py, level)?,
            Wish::At(_) if limits.is_some() => self.timer(shared, py)?,
            Wish::At(_) => return Err(Stop::Slow),
        };
        let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
        let sys_flag = sys_flag.small().filter(|flag| flag & !ORDINARY_SYS_FLAG == 0).ok_or(Stop::Slow)?;
        shared.set_unique_key(unique_key);
        hashes.clear();
        let tag_code = shared.hash(stored, &pairs, hashes);
        let (is_open, waits) = (pairs.part_count % 2 == 0, pairs.waits());
        if is_open {
            text.push(2);
        }
        text.extend_from_slice(&shared.identity.own_properties);
        let mut out_ms = 0;
        let code = match wish {
            Wish::Level(level) => burst.writing.now_ms + self.delay_ms(level)?,
            Wish::At(deliver_ms) => {
                let (precision_ms, longest_ms) = limits.ok_or(Stop::Slow)?;
                let now_ms = burst.writing.now_ms;
                if deliver_ms <= now_ms || deliver_ms - now_ms > longest_ms || precision_ms < 1 {
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
        text.extend_from_slice(shared.appender.topics.list[topic].name());
        text.extend_from_slice(b"\x02REAL_QID\x01");
        text.extend_from_slice(shared.appender.topics.queues[queue].id.to_string().as_bytes());
        text.push(2);
        if text.len() > PROPERTIES_BYTES_MAX || request.body.len() > shared.max_message_bytes {
            return Err(Stop::Slow);
        }
        let message = Message {
            body: request.body,
            properties: text,
            tag_code: code,
            flag: flag.small().ok_or(Stop::Slow)?,
            sys_flag,
            born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
            reconsume_times: tries.small().ok_or(Stop::Slow)?,
            prepared_offset: 0,
        };
        let placed = shared.appender.append(&mut burst.writing, stored, stored_queue, &message, hashes)?;
        shared.clear_message_ids();
        shared.add_message_id(placed.physical_offset);
        shared.appender.count_for(&mut burst.writing, stored, topic, placed.size);
        match wish {
            Wish::Level(level) => self.tell_level(burst, level, placed.queue_offset, code)?,
            Wish::At(_) => {
                self.tell_timer(burst)?;
                self.set_recall_handle(shared, topic, out_ms + 1);
            }
        }
        Ok(Answer { queue, queue_offset: placed.queue_offset, waits: burst.holds && waits })
    }

    /// The delivery of a level is to know of its first message in a burst.
    fn tell_level(&mut self, burst: &mut Burst<'_>, level: usize, queue_offset: i64, due_ms: i64) -> Outcome<()> {
        let (py, bit) = (burst.writing.py, 1_u128 << (level - 1));
        let turn = self.turn(burst)?;
        if turn.told_levels & bit != 0 {
            return Ok(());
        }
        turn.told_levels |= bit;
        let arguments = (level - 1, queue_offset + 1, due_ms);
        let told = self.hooks.bind(py).call_method1(intern!(py, "level_appended"), arguments);
        told.map(|_| ()).or_else(|error| note_failed_callback(py, error, "telling the schedule")).map_err(Stop::Fault)
    }

    /// The timer is to know once in a burst that it has messages.
    fn tell_timer(&mut self, burst: &mut Burst<'_>) -> Outcome<()> {
        let py = burst.writing.py;
        let turn = self.turn(burst)?;
        if std::mem::replace(&mut turn.told_timer, true) {
            return Ok(());
        }
        let told = self.hooks.bind(py).call_method0(intern!(py, "timer_appended"));
        told.map(|_| ()).or_else(|error| note_failed_callback(py, error, "telling the timer")).map_err(Stop::Fault)
    }

    fn delay_ms(&self, level: usize) -> Outcome<i64> {
        self.delays_ms.get(level - 1).copied().ok_or(Stop::Slow)
    }

    /// Put the handle by which the message can be recalled into the scratch buffer (remoting/recall_handle.py).
    fn set_recall_handle(&self, shared: &mut Shared, topic: usize, timestamp_ms: i64) {
        let mut text = b"v1 ".to_vec();
        text.extend_from_slice(shared.appender.topics.list[topic].name());
        text.push(b' ');
        text.extend_from_slice(&self.broker_name);
        text.push(b' ');
        text.extend_from_slice(timestamp_ms.to_string().as_bytes());
        text.push(b' ');
        text.extend_from_slice(&shared.scratch.unique_key);
        let out = &mut shared.scratch.recall_handle;
        out.clear();
        write_base64(&text, out);
    }

    /// The numbers of the timer topic and of its queue.
    fn timer(&mut self, shared: &mut Shared, py: Python<'_>) -> Outcome<(usize, usize)> {
        if let Some(place) = self.timer_place {
            return Ok(place);
        }
        let topic = shared.appender.add_topic(py, self.timer_topic.bind(py))?;
        let place = (topic, shared.appender.add_queue(py, topic, 0, Vec::new())?);
        self.timer_place = Some(place);
        Ok(place)
    }

    /// The numbers of the schedule topic and of the level's queue.
    fn level(&mut self, shared: &mut Shared, py: Python<'_>, level: usize) -> Outcome<(usize, usize)> {
        self.delay_ms(level)?;
        if let (Some(number), Some(queue)) = (self.schedule_number, self.level_queues[level - 1]) {
            return Ok((number, queue));
        }
        let number = match self.schedule_number {
            Some(number) => number,
            None => shared.appender.add_topic(py, self.schedule_topic.bind(py))?,
        };
        self.schedule_number = Some(number);
        let id = i64::try_from(level - 1).map_err(|_| Stop::Slow)?;
        let queue = shared.appender.add_queue(py, number, id, Vec::new())?;
        self.level_queues[level - 1] = Some(queue);
        Ok((number, queue))
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
