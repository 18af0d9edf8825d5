//! Messages with a delay level or a time, as send.py stores them with the hooks of aerobee/broker/send/delay_level.py and
//! aerobee/broker/timer/timer_hook.py (aerobee/broker/fastpath/delayed.py is the Python counterpart): in the queue of their level of
//! SCHEDULE_TOPIC_XXXX, with the time at which they are due in the queue entry, or in queue 0 of rmq_sys_wheel_timer.

use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;

use crate::constants::{DELAY_DIGITS_MAX, ELIGIBLE_SYS_FLAG, LEVEL_MAX, PROPERTIES_BYTES_MAX, SEND_BACK, SEND_MESSAGE_V2};
use crate::outcome::{Outcome, Stop, note_failed_callback};
use crate::record::Message;
use crate::send_back::{DelayLevels, SendBacks};
use crate::shared::{Answer, Burst, FrameHandler, Form, Gate, SHORT_NAMES, Request, Shared};
use crate::text::{NameSet, is_alphanumeric, read_properties};

/// The family. Its hooks are DelayHooks of aerobee/broker/fastpath/seam.py.
pub struct Delayed {
    hooks: Py<PyAny>,
    schedule_topic: Py<PyAny>,
    timer_topic: Py<PyAny>,
    broker_name: Vec<u8>,
    delays_ms: Vec<i64>,
    /// Properties of messages that are for the handlers.
    special: NameSet,
    schedule_number: Option<usize>,
    level_queues: Vec<Option<usize>>,
    timer_number: Option<usize>,
    timer_queue: Option<usize>,
    turn: Option<Turn>,
    /// None: they are the handlers'.
    pub send_backs: Option<SendBacks>,
}

/// State of one burst.
struct Turn {
    burst: u64,
    is_allowed: bool,
    /// Precision and longest delay, ms; None: timer messages are for the handlers.
    timer_limits: Option<(i64, i64)>,
    /// Levels whose delivery was notified: once is enough, for those of a level are all due at the same time.
    told_levels: u128,
    told_timer: bool,
}

/// Requested delivery of a message.
enum Wish {
    Level(usize),
    /// Requested delivery time, ms.
    At(i64),
}

/// Due time of a message.
enum Due {
    /// That of a level, which counts from 1, at this time, ms.
    Level(usize, i64),
    /// That of the timer, in the slot that begins at this time, ms.
    Slot(i64),
}

impl FrameHandler for Delayed {
    fn codes(&self) -> &'static [i64] {
        if self.send_backs.is_some() { &[SEND_MESSAGE_V2, SEND_BACK] } else { &[SEND_MESSAGE_V2] }
    }

    fn gate(&self) -> Gate {
        Gate::Sends
    }

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        if request.code == SEND_BACK {
            let Some(mut send_backs) = self.send_backs.take() else { return Err(Stop::Slow) };
            let served = send_backs.serve(self, shared, burst, request);
            self.send_backs = Some(send_backs);
            return served;
        }
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
        shared.scratch.more.clear();
        answer.map(|_| ())
    }

    fn forget_topics(&mut self) {
        self.schedule_number = None;
        self.level_queues.fill(None);
        self.timer_number = None;
        self.timer_queue = None;
        if let Some(send_backs) = &mut self.send_backs {
            send_backs.forget_topics();
        }
    }

    fn forget_authorizations(&mut self) {
        if let Some(send_backs) = &mut self.send_backs {
            send_backs.forget();
        }
    }

    fn end(&mut self, py: Python<'_>) -> PyResult<()> {
        self.send_backs.as_mut().map_or(Ok(()), |send_backs| send_backs.end(py))
    }
}

impl Delayed {
    pub fn new(
        hooks: Py<PyAny>,
        schedule_topic: Py<PyAny>,
        timer_topic: Py<PyAny>,
        broker_name: String,
        delays_ms: Vec<i64>,
        special: HashSet<String>,
        send_backs: Option<SendBacks>,
    ) -> Self {
        Self {
            hooks,
            send_backs,
            schedule_topic,
            timer_topic,
            broker_name: broker_name.into_bytes(),
            special: NameSet::new(special),
            schedule_number: None,
            level_queues: vec![None; delays_ms.len()],
            delays_ms,
            timer_number: None,
            timer_queue: None,
            turn: None,
        }
    }

    /// State of this burst, read once per burst.
    fn turn(&mut self, burst: &Burst<'_>) -> Outcome<&mut Turn> {
        if self.turn.as_ref().is_none_or(|turn| turn.burst != burst.number) {
            let py = burst.writing.py;
            let hooks = self.hooks.bind(py);
            let is_allowed = hooks.call_method0(intern!(py, "takes_delayed")).and_then(|is| is.is_truthy());
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
        let now_ms = burst.writing.now_ms;
        let wish = wish_of(text, now_ms).ok_or(Stop::Slow)?;
        let turn = self.turn(burst)?;
        if !turn.is_allowed {
            return Err(Stop::Slow);
        }
        let limits = turn.timer_limits;
        let due = self.due(&wish, now_ms, limits)?;
        let py = burst.writing.py;
        let (topic, queue) = shared.find(py, topic, queue)?;
        let stored = match wish {
            Wish::Level(_) => self.schedule(shared, py)?,
            Wish::At(_) => self.timer(shared, py)?,
        };
        let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
        shared.set_unique_key(unique_key);
        hashes.clear();
        let tag_code = shared.hash(stored, &pairs, hashes);
        let (is_open, waits) = (pairs.part_count % 2 == 0, burst.waits(pairs.waits())?);
        if is_open {
            text.push(2);
        }
        text.extend_from_slice(&shared.identity.own_properties);
        if let Due::Slot(out_ms) = due {
            text.extend_from_slice(b"TIMER_OUT_MS\x01");
            text.extend_from_slice(out_ms.to_string().as_bytes());
            text.push(2);
        }
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
            tag_code: match due {
                Due::Level(_, due_ms) => due_ms,
                Due::Slot(_) => tag_code,
            },
            flag: flag.small().ok_or(Stop::Slow)?,
            sys_flag,
            born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
            reconsume_times: tries.small().ok_or(Stop::Slow)?,
            prepared_offset: 0,
        };
        // Last of all: a queue is opened for messages that are stored, and for no others.
        let stored_queue = self.stored_queue(shared, py, stored, &due)?;
        let placed = shared.appender.append(&mut burst.writing, stored, stored_queue, &message, hashes)?;
        shared.clear_message_ids();
        shared.add_message_id(placed.physical_offset);
        shared.appender.count_for(stored, topic, placed.size);
        match due {
            Due::Level(level, due_ms) => self.tell_level(burst, level, placed.queue_offset, due_ms)?,
            Due::Slot(out_ms) => {
                self.tell_timer(burst)?;
                self.set_recall_handle(shared, topic, out_ms + 1);
            }
        }
        Ok(Answer { queue, queue_offset: placed.queue_offset, waits })
    }

    /// Notify the timer of its messages once per burst.
    fn tell_timer(&mut self, burst: &mut Burst<'_>) -> Outcome<()> {
        let py = burst.writing.py;
        let turn = self.turn(burst)?;
        if std::mem::replace(&mut turn.told_timer, true) {
            return Ok(());
        }
        let told = self.hooks.bind(py).call_method0(intern!(py, "timer_appended"));
        told.map(|_| ()).or_else(|error| note_failed_callback(py, error, "telling the timer")).map_err(Stop::Fault)
    }

    /// Due time for this request; the handlers serve requests outside the supported range.
    fn due(&self, wish: &Wish, now_ms: i64, limits: Option<(i64, i64)>) -> Outcome<Due> {
        match *wish {
            Wish::Level(level) => {
                let delay_ms = self.delays_ms.get(level - 1).ok_or(Stop::Slow)?;
                Ok(Due::Level(level, now_ms + delay_ms))
            }
            Wish::At(deliver_ms) => {
                let (precision_ms, longest_ms) = limits.ok_or(Stop::Slow)?;
                if deliver_ms <= now_ms || deliver_ms - now_ms > longest_ms || precision_ms < 1 {
                    return Err(Stop::Slow);
                }
                // A slot that begins at T holds what is due in (T, T + precision].
                Ok(Due::Slot((deliver_ms - 1).div_euclid(precision_ms) * precision_ms))
            }
        }
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
        let out = &mut shared.scratch.more;
        out.clear();
        out.extend_from_slice(b"\",\"recallHandle\":\"");
        write_base64(&text, out);
    }

    /// The number of the timer topic.
    fn timer(&mut self, shared: &mut Shared, py: Python<'_>) -> Outcome<usize> {
        match self.timer_number {
            Some(number) => Ok(number),
            None => Ok(*self.timer_number.insert(shared.appender.add_topic(py, self.timer_topic.bind(py))?)),
        }
    }

    /// The number of the queue of the topic `stored` in which a message that is then due is kept.
    fn stored_queue(&mut self, shared: &mut Shared, py: Python<'_>, stored: usize, due: &Due) -> Outcome<usize> {
        let (known, id) = match *due {
            Due::Level(level, _) => (&mut self.level_queues[level - 1], level - 1),
            Due::Slot(_) => (&mut self.timer_queue, 0),
        };
        if let Some(queue) = *known {
            return Ok(queue);
        }
        let id = i64::try_from(id).map_err(|_| Stop::Slow)?;
        Ok(*known.insert(shared.appender.add_queue(py, stored, id, Vec::new())?))
    }
}

impl DelayLevels for Delayed {
    fn is_allowed(&mut self, burst: &Burst<'_>) -> Outcome<bool> {
        Ok(self.turn(burst)?.is_allowed)
    }

    fn level_count(&self) -> usize {
        self.delays_ms.len()
    }

    fn delay_ms(&self, level: usize) -> i64 {
        self.delays_ms[level - 1]
    }

    fn broker_name(&self) -> &[u8] {
        &self.broker_name
    }

    fn level_queue(&mut self, shared: &mut Shared, py: Python<'_>, stored: usize, level: usize) -> Outcome<usize> {
        self.stored_queue(shared, py, stored, &Due::Level(level, 0))
    }

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

    fn schedule(&mut self, shared: &mut Shared, py: Python<'_>) -> Outcome<usize> {
        match self.schedule_number {
            Some(number) => Ok(number),
            None => Ok(*self.schedule_number.insert(shared.appender.add_topic(py, self.schedule_topic.bind(py))?)),
        }
    }
}

/// The request in a property text, if it occurs once and in canonical form.
fn wish_of(text: &[u8], now_ms: i64) -> Option<Wish> {
    let mut found = None;
    let mut parts = text.split(|byte| matches!(byte, 1 | 2));
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        let wish = match name {
            b"DELAY" => Wish::Level(level_of(value)?),
            b"TIMER_DELAY_SEC" => Wish::At(digits(value)?.checked_mul(1000)?.checked_add(now_ms)?),
            b"TIMER_DELAY_MS" => Wish::At(digits(value)?.checked_add(now_ms)?),
            b"TIMER_DELIVER_MS" => Wish::At(digits(value)?),
            _ => continue,
        };
        if found.replace(wish).is_some() {
            return None;
        }
    }
    found
}

fn level_of(text: &[u8]) -> Option<usize> {
    let level = digits(text).filter(|level| !text.starts_with(b"0") && (1..=LEVEL_MAX).contains(level))?;
    usize::try_from(level).ok()
}

/// A number of at most DELAY_DIGITS_MAX digits.
fn digits(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > DELAY_DIGITS_MAX || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')))
}

/// Base64 with the URL-safe alphabet, padded.
fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for place in 0..4 {
            let digit = BASE64[(word >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= three.len() { digit } else { b'=' });
        }
    }
}
