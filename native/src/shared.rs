//! Shared by all frame handlers: the burst, the request, look-up of topics and queues, and replies to sends.

use std::collections::{HashMap, HashSet};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::constants::REPLY_VERSION;
use crate::appender::{Appender, Writing};
use crate::binary_header;
use crate::field::{Fields, Name, Value};
use crate::guard::Asked;
use crate::handed_out::HandedOut;
use crate::outcome::{Outcome, Stop};
use crate::requests::Answers;
use crate::results::{Leveled, Pulled};
use crate::window::Window;
use crate::text::{NameSet, Properties, java_hash_from, write_decimal};

const REPLIES_BYTES_KEPT: usize = 1 << 18;
// Byte positions of the numbers of fastpath/permits.py.
const FENCE_AT: i64 = 0;
const HOLDS_AT: i64 = 8;
const HOLDS_ALL: i64 = 2;

/// The names of a send's fields: topic, queue id, sys flag, born timestamp, flag, properties, reconsume times, batch.
pub type SendNames = [Name; 8];
pub const SHORT_NAMES: SendNames = [Name::B, Name::E, Name::F, Name::G, Name::H, Name::I, Name::J, Name::M];
pub const WORDS: SendNames = [
    Name::Topic, Name::QueueId, Name::SysFlag, Name::BornTimestamp, Name::Flag, Name::Properties,
    Name::ReconsumeTimes, Name::Batch,
];

/// Header type of the request; the reply uses the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Binary,
}

/// Frames served now; the handlers serve or refuse the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    pub sends: bool,
    pub pulls: bool,
}

/// The gate that a family's frames pass.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Sends,
    Pulls,
}

/// One request, its header read.
pub struct Request<'a> {
    pub form: Form,
    pub code: i64,
    pub flag: i64,
    pub opaque: i64,
    /// Of a JSON header whose peer is not checked by a guard; 0 where the header has none. None: unknown.
    pub version: Option<i64>,
    pub fields: &'a Fields<'a>,
    pub body: &'a [u8],
    pub frame: &'a [u8],
}

/// Frames of one kind. A frame handler serves ordinary frames, and leaves others before it has written a byte.
pub trait FrameHandler: Send {
    fn codes(&self) -> &'static [i64];

    fn gate(&self) -> Gate;

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()>;

    /// Whether the handler calls no Python code except calls that the appender and the authorizations record: the event
    /// loop then need not run in between.
    fn is_silent(&self) -> bool {
        false
    }

    /// A burst has ended: run the work that is done once per burst.
    fn end(&mut self, _py: Python<'_>) -> PyResult<()> {
        Ok(())
    }

    /// Topics have changed: every number of a topic or a queue is void.
    fn forget_topics(&mut self) {}

    /// Groups, subscriptions or offsets have changed.
    fn forget_authorizations(&mut self) {}
}

/// One burst.
pub struct Burst<'py> {
    pub writing: Writing<'py>,
    /// Number of the burst. Look-ups of a frame handler are valid for one burst only.
    pub number: u64,
    pub gates: Gates,
    /// The proof that the guard requires of the peer.
    pub asked: Asked,
    /// Senders that request durability are answered when the append is safe.
    holds: bool,
    /// Sends that do not request durability are left to the handlers.
    holds_all: bool,
    pub replies: Vec<u8>,
    pub held: Vec<u8>,
    /// Numbers of replies in `held`, by request code.
    pub deferred_answers: Answers,
    /// Replies that wait for an ack level, and in which of them the last reply is.
    pub leveled: Vec<Leveled>,
    pub last_leveled: Option<usize>,
    pub pulled: Vec<Pulled>,
    pub pulled_bytes: usize,
    /// Total number of storing requests at its start.
    pub requests_before: u64,
}

impl Burst<'_> {
    /// Whether a message's answer is held, asked before it is stored. A reply that is not deferred but must not be sent
    /// from here is left to the handlers.
    pub fn waits(&self, wants_to_wait: bool) -> Outcome<bool> {
        let waits = self.holds && wants_to_wait;
        if self.holds_all && !waits { Err(Stop::Slow) } else { Ok(waits) }
    }
}

/// Contents of a send's reply; message ids and unique key are in the scratch buffers.
pub struct Answer {
    pub queue: usize,
    pub queue_offset: i64,
    pub waits: bool,
}

/// Buffers that keep their memory between messages.
#[derive(Default)]
pub struct Scratch {
    pub properties: Vec<u8>,
    pub hashes: Vec<i32>,
    pub message_ids: Vec<u8>,
    pub unique_key: Vec<u8>,
    /// Further fields of a reply to a send, as JSON within the value before them: `","name":"value`. Mostly empty.
    pub more: Vec<u8>,
    pub body: Vec<u8>,
    pub head: Vec<u8>, // of a pull's reply
    replies: Vec<u8>,
}

/// The backend's references to the broker.
pub struct Identity {
    pub own_properties: Vec<u8>,
    pub reply_fields: Vec<u8>,
    pub reply_ext: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Identity {
    pub fn new(own_properties: String, reply_fields: String, reply_ext: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut ext = Vec::new();
        for (name, value) in reply_ext {
            ext.push((name.extract::<String>()?.into_bytes(), value.extract::<String>()?.into_bytes()));
        }
        Ok(Self {
            own_properties: own_properties.into_bytes(),
            reply_fields: reply_fields.into_bytes(),
            reply_ext: ext,
        })
    }
}

/// The store's settings that a burst asks for, read again when its config is another object.
struct Settings {
    config: Py<PyAny>,
    is_sync: bool,
}

/// State between bursts.
pub struct Shared {
    pub appender: Appender,
    pub identity: Identity,
    pub special: NameSet,
    pub scratch: Scratch,
    pub max_message_bytes: usize,
    pub handed_out: HandedOut,
    /// Topics with an ack level, which are not ordinary: number and level, by name.
    pub leveled: HashMap<Vec<u8>, (usize, usize)>,
    find_topic: Py<PyAny>,
    store_host_hex: Vec<u8>,
    settings: Option<Settings>,
    permits: Option<Window>, // None: everything is permitted, and nothing held
    burst_count: u64,
}

impl Shared {
    pub fn new(
        appender: Appender,
        identity: Identity,
        find_topic: Py<PyAny>,
        special: HashSet<String>,
        permits: Option<Window>,
    ) -> Self {
        let hex: String = appender.store_host.iter().map(|byte| format!("{byte:02X}")).collect();
        Self {
            appender,
            identity,
            special: NameSet::new(special),
            scratch: Scratch::default(),
            max_message_bytes: 0,
            handed_out: HandedOut::default(),
            leveled: HashMap::new(),
            find_topic,
            store_host_hex: hex.into_bytes(),
            settings: None,
            permits,
            burst_count: 0,
        }
    }

    /// Initial values of one burst.
    pub fn begin<'py>(&mut self, py: Python<'py>, born_host: &[u8], now_ms: i64, gates: Gates) -> PyResult<Burst<'py>> {
        let gates = Gates { sends: gates.sends && self.may_append(), ..gates };
        let config = self.appender.store.bind(py).getattr(intern!(py, "config"))?;
        let is_sync = match &self.settings {
            Some(known) if known.config.is(&config) => known.is_sync,
            _ => self.load_settings(&config)?,
        };
        self.burst_count += 1;
        Ok(Burst {
            asked: Asked::Unknown,
            writing: Writing::new(py, born_host, now_ms, is_sync),
            number: self.burst_count,
            gates,
            holds: self.permit(HOLDS_AT) != 0,
            holds_all: self.permit(HOLDS_AT) == HOLDS_ALL,
            replies: std::mem::take(&mut self.scratch.replies),
            held: Vec::new(),
            deferred_answers: Answers::default(),
            leveled: Vec::new(),
            last_leveled: None,
            pulled: Vec::new(),
            pulled_bytes: 0,
            requests_before: self.appender.topics.request_count,
        })
    }

    /// Whether messages may be appended here: no other broker has taken over. Read before each iteration.
    pub fn may_append(&self) -> bool {
        self.permit(FENCE_AT) == 0
    }

    fn permit(&self, at: i64) -> i64 {
        self.permits.as_ref().and_then(|permits| permits.read(at)).map_or(0, i64::from_ne_bytes)
    }

    fn load_settings(&mut self, config: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = config.py();
        let visibility = self.appender.store.bind(py).getattr(intern!(py, "visibility"))?;
        let is_sync = visibility.getattr(intern!(py, "holds"))?.is_truthy()?;
        self.max_message_bytes = config.getattr(intern!(py, "max_message_size"))?.extract()?;
        self.settings = Some(Settings { config: config.clone().unbind(), is_sync });
        Ok(is_sync)
    }

    /// Keep the memory of replies for the next burst, but no more than most need.
    pub fn keep(&mut self, mut replies: Vec<u8>) {
        replies.clear();
        replies.shrink_to(REPLIES_BYTES_KEPT);
        self.scratch.replies = replies;
    }

    /// Topics have changed: look everything up again.
    pub fn forget_topics(&mut self, py: Python<'_>) {
        self.appender.topics.clear(py);
        self.leveled.clear();
    }

    /// Find the topic and the queue that a send names, or leave it to the handlers.
    pub fn find(&mut self, py: Python<'_>, topic: Value<'_>, queue: Value<'_>) -> Outcome<(usize, usize)> {
        let name = topic.text().ok_or(Stop::Slow)?;
        let number = match self.appender.topics.find(&name) {
            Some(number) => number,
            None => self.topic_of(py, &name)?,
        };
        let queue_id = plain_queue_id(queue)?;
        Ok((number, self.queue_of(py, number, queue_id)?))
    }

    /// Look up a topic, new here, or leave the message to the handlers.
    pub fn topic_of(&mut self, py: Python<'_>, name: &[u8]) -> Outcome<usize> {
        let text = std::str::from_utf8(name).map_err(|_| Stop::Slow)?;
        if self.leveled.contains_key(name) {
            return Err(Stop::Slow); // without a call
        }
        self.appender.has_called = true;
        let config = self.appender.errors.check(py, self.find_topic.bind(py).call1((text,)))?;
        if config.is_none() {
            return Err(Stop::Slow);
        }
        let number = self.appender.add_topic(py, &config)?;
        self.appender.topics.remember(name, number);
        Ok(number)
    }

    /// Find a queue of a topic, or leave the message to the handlers.
    pub fn queue_of(&mut self, py: Python<'_>, number: usize, queue_id: i64) -> Outcome<usize> {
        let known = &self.appender.topics.list[number];
        if let Some(found) = known.queue(queue_id) {
            return Ok(found);
        }
        if !(0..known.queue_count).contains(&queue_id) {
            return Err(Stop::Slow);
        }
        let reply_start = format!("{{\"code\":0,\"extFields\":{{\"queueId\":\"{queue_id}\",\"transactionId\":\"");
        let queue = self.appender.add_queue(py, number, queue_id, reply_start.into_bytes())?;
        self.appender.topics.list[number].remember_queue(queue_id, queue);
        Ok(queue)
    }

    /// Index hashes of a message, in the order in which handlers write them; returns its tags code.
    pub fn hash(&self, topic: usize, pairs: &Properties<'_>, hashes: &mut Vec<i32>) -> i64 {
        let topic = &self.appender.topics.list[topic];
        if let Some(key) = pairs.unique_key.filter(|key| !key.is_empty()) {
            hashes.push(topic.key_hash(key));
        }
        if let Some(keys) = pairs.keys {
            hashes.extend(keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty()).map(|key| topic.key_hash(key)));
        }
        let Some(tag) = pairs.tags.filter(|tag| !tag.is_empty()) else { return 0 };
        hashes.push(topic.tag_hash(tag));
        i64::from(java_hash_from(0, tag) as i32)
    }

    /// Put the record at `physical_offset`, of `size` bytes, into `out`.
    pub fn read_record(&mut self, burst: &mut Burst<'_>, physical_offset: i64, size: usize, out: &mut Vec<u8>) -> Outcome<()> {
        out.clear();
        let appender = &mut self.appender;
        if appender.read_current(&mut burst.writing, physical_offset, size, out).map_err(Stop::Fault)? {
            return Ok(());
        }
        appender.settle(&mut burst.writing).map_err(Stop::Fault)?;
        let py = burst.writing.py;
        let read = appender.log_object.bind(py).call_method1(intern!(py, "read"), (physical_offset, size));
        let read = appender.errors.check(py, read)?;
        out.extend_from_slice(read.cast::<PyBytes>().map_err(|_| Stop::Slow)?.as_bytes());
        Ok(())
    }

    /// Begin the message ids of a reply.
    pub fn clear_message_ids(&mut self) {
        self.scratch.message_ids.clear();
    }

    /// Add an offset message id: upper-case hex of the packed store host and the physical offset.
    pub fn add_message_id(&mut self, offset: i64) {
        let ids = &mut self.scratch.message_ids;
        if !ids.is_empty() {
            ids.push(b',');
        }
        ids.extend_from_slice(&self.store_host_hex);
        ids.extend_from_slice(&hex_of(offset));
    }

    /// Keep the unique key for the reply.
    pub fn set_unique_key(&mut self, unique_key: &[u8]) {
        self.scratch.unique_key.clear();
        self.scratch.unique_key.extend_from_slice(unique_key);
    }

    /// Write the reply to a send, unless the send is one-way.
    pub fn reply(&mut self, burst: &mut Burst<'_>, request: &Request<'_>, answer: &Answer) {
        if request.flag != 0 {
            return;
        }
        let out = if answer.waits { &mut burst.held } else { &mut burst.replies };
        self.write_reply(out, request, answer);
    }

    /// As `reply`, to a send with an ack level, by its number in ACK_LEVELS, that waits.
    pub fn reply_leveled(&mut self, burst: &mut Burst<'_>, request: &Request<'_>, answer: &Answer, level: usize) {
        if request.flag != 0 {
            return;
        }
        let number = burst.leveled.iter().position(|each| each.level == level).unwrap_or_else(|| {
            burst.leveled.push(Leveled { level, frames: Vec::new(), answers: Answers::default() });
            burst.leveled.len() - 1
        });
        self.write_reply(&mut burst.leveled[number].frames, request, answer);
        burst.last_leveled = Some(number);
    }

    #[inline(always)]
    fn write_reply(&self, out: &mut Vec<u8>, request: &Request<'_>, answer: &Answer) {
        let queue = &self.appender.topics.queues[answer.queue];
        let Scratch { message_ids, unique_key, more, .. } = &self.scratch;
        if request.form == Form::Binary {
            let queue_id = queue.id.to_string();
            let queue_offset = answer.queue_offset.to_string();
            let mut entries: Vec<(&[u8], &[u8])> = vec![
                (b"queueId", queue_id.as_bytes()),
                (b"transactionId", unique_key),
                (b"msgId", message_ids),
            ];
            entries.extend(self.identity.reply_ext.iter().map(|(name, value)| (name.as_slice(), value.as_slice())));
            entries.push((b"queueOffset", queue_offset.as_bytes()));
            binary_header::write_reply(out, request.opaque, b"", &entries, 0);
            return;
        }
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&queue.reply_start);
        out.extend_from_slice(unique_key);
        out.extend_from_slice(b"\",\"msgId\":\"");
        out.extend_from_slice(message_ids);
        out.extend_from_slice(&self.identity.reply_fields);
        out.push(b'"');
        write_decimal(out, answer.queue_offset);
        if !more.is_empty() {
            out.extend_from_slice(more);
        }
        out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
        write_decimal(out, request.opaque);
        out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        write_decimal(out, i64::from(REPLY_VERSION));
        out.push(b'}');
        let header_bytes = out.len() - start - 8;
        out[start..start + 4].copy_from_slice(&(header_bytes as u32 + 4).to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&(header_bytes as u32).to_be_bytes());
    }
}

/// The queue id that a send names. Only the canonical text of a number names a queue: "01" is for the handlers.
pub fn plain_queue_id(queue: Value<'_>) -> Outcome<i64> {
    let queue_id = queue.number().ok_or(Stop::Slow)?;
    match queue.text() {
        Some(text) if queue_id < 0 || text.len() != decimal_digits(queue_id) => Err(Stop::Slow),
        _ => Ok(queue_id),
    }
}

fn decimal_digits(value: i64) -> usize {
    value.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// The sixteen upper-case hex digits of a number: all of them in one step, four bits in each byte.
pub fn hex_of(value: i64) -> [u8; 16] {
    let half = |word: u32| {
        let mut nibbles = u64::from(word);
        nibbles = (nibbles | nibbles << 16) & 0x0000_FFFF_0000_FFFF;
        nibbles = (nibbles | nibbles << 8) & 0x00FF_00FF_00FF_00FF;
        nibbles = (nibbles | nibbles << 4) & 0x0F0F_0F0F_0F0F_0F0F;
        let letters = (nibbles + 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101; // 1 where it is 10 or more
        (nibbles + 0x3030_3030_3030_3030 + letters * 7).to_be_bytes()
    };
    let mut digits = [0; 16];
    digits[..8].copy_from_slice(&half((value >> 32) as u32));
    digits[8..].copy_from_slice(&half(value as u32));
    digits
}
