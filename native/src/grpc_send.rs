//! SendMessage of gRPC: an ordinary request, from its bytes to the record and the bytes of the response.
//! aerobee/broker/grpc/send_message.py is the reference implementation, which serves every other request.
//!
//! Ordinary: one NORMAL message to an existing topic that gRPC may send to, with texts that need no check beyond those here,
//! answered without waiting. Nothing is written before a request is known to be ordinary.

use std::collections::HashSet;

use pyo3::prelude::*;

use crate::constants::{
    GRPC_BORN_HOST, GRPC_BORN_TIMESTAMP, GRPC_OK, GRPC_PROPERTIES_BYTES_MAX, GRPC_SECONDS_MAX, GRPC_TRACE_CONTEXT,
    PROPERTIES_BYTES_MAX,
};
use crate::outcome::{Outcome, Stop};
use crate::protobuf::{Value, keep, read, write_bytes, write_varint};
use crate::record::Message;
use crate::shared::{Burst, Shared};
use crate::text::{NameSet, Properties, is_alphanumeric, write_decimal};

const USER_PROPERTIES_MAX: usize = 16; // each is compared with those before it
const MESSAGE_ID_BYTES_MAX: usize = 255;
/// No response takes more.
pub const RESPONSE_BYTES_MAX: usize = 1_024;
const NANOS_END: i32 = 1_000_000_000;
const IDENTITY: i32 = 1;
const NORMAL: i32 = 1;

/// What it needs of Python.
pub struct GrpcSends {
    queue_count_of: Py<PyAny>, // of a topic by its name: the queues to choose from, 0 where the services decide
    reserved: NameSet,         // properties that a user may not set, or that make a message more than a NORMAL one
}

impl GrpcSends {
    pub fn new(queue_count_of: Py<PyAny>, reserved: HashSet<String>) -> Self {
        Self { queue_count_of, reserved: NameSet::new(reserved) }
    }

    /// Serve one request, and append its response to `response`. `pick` is a random number.
    pub fn serve(
        &self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        pick: u32,
        request: &[u8],
        response: &mut Vec<u8>,
    ) -> Outcome<()> {
        let sent = Sent::read(request).ok_or(Stop::Slow)?;
        let mut text = std::mem::take(&mut shared.scratch.properties);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        let stored = self.store(shared, burst, pick, &sent, &mut text, &mut hashes);
        shared.scratch.properties = text;
        shared.scratch.hashes = hashes;
        write_response(response, sent.message_id.as_bytes(), stored?);
        Ok(())
    }

    /// Store the message; returns its queue offset. `text` and `hashes` are buffers.
    fn store(
        &self,
        shared: &mut Shared,
        burst: &mut Burst<'_>,
        pick: u32,
        sent: &Sent<'_>,
        text: &mut Vec<u8>,
        hashes: &mut Vec<i32>,
    ) -> Outcome<i64> {
        let is_special = |name: &str| self.reserved.has(name.as_bytes()) || shared.special.has(name.as_bytes());
        if sent.body.is_empty()
            || sent.body.len() > shared.max_message_bytes
            || sent.user.iter().any(|(name, _)| is_special(name))
            || burst.waits(true)?
        {
            return Err(Stop::Slow);
        }
        let topic = match shared.appender.topics.find(sent.topic.as_bytes()) {
            Some(topic) => topic,
            None => shared.topic_of(burst.writing.py, sent.topic.as_bytes())?,
        };
        let queue_count = self.queue_count(shared, burst.writing.py, topic, sent.topic)?;
        let queue = shared.queue_of(burst.writing.py, topic, i64::from(pick % queue_count))?;
        let keys = sent.keys.join(" ");
        sent.write_properties(&keys, text);
        text.extend_from_slice(&shared.identity.own_properties);
        if text.len() > PROPERTIES_BYTES_MAX {
            return Err(Stop::Slow);
        }
        let pairs = Properties {
            unique_key: Some(sent.message_id.as_bytes()),
            keys: Some(keys.as_bytes()),
            tags: sent.tag.map(str::as_bytes),
            ..Properties::default()
        };
        hashes.clear();
        let message = Message {
            body: sent.body,
            properties: text,
            tag_code: shared.hash(topic, &pairs, hashes),
            flag: 0,
            reconsume_times: 0,
            sys_flag: 0,
            born_timestamp: sent.born_ms.into(),
            prepared_offset: 0,
        };
        let placed = shared.appender.append(&mut burst.writing, topic, queue, &message, hashes)?;
        shared.appender.topics.count_request(topic);
        Ok(placed.queue_offset)
    }

    /// How many queues of the topic a message may go to. Asked once for each topic, until topics change.
    fn queue_count(&self, shared: &mut Shared, py: Python<'_>, topic: usize, name: &str) -> Outcome<u32> {
        let appender = &mut shared.appender;
        let count = match appender.topics.list[topic].grpc_queue_count {
            Some(count) => count,
            None => {
                appender.has_called = true;
                let found = self.queue_count_of.bind(py).call1((name,)).and_then(|count| count.extract::<u32>());
                let count = appender.errors.check(py, found)?;
                appender.topics.list[topic].grpc_queue_count = Some(count);
                count
            }
        };
        if count == 0 { Err(Stop::Slow) } else { Ok(count) }
    }
}

/// The message of an ordinary request.
struct Sent<'a> {
    topic: &'a str,
    user: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
    message_id: &'a str,
    tag: Option<&'a str>,
    keys: Vec<&'a str>,
    born_ms: i64,
    born_host: &'a str,
    trace_context: &'a str,
}

impl<'a> Sent<'a> {
    /// None for a request that is not ordinary.
    fn read(request: &'a [u8]) -> Option<Self> {
        let mut message = None;
        read(request, |number, value| match number {
            1 => keep(&mut message, value.bytes()?),
            _ => None,
        })?;
        let (mut topic, mut user, mut system, mut body) = (None, Vec::new(), None, None);
        read(message?, |number, value| match number {
            1 => keep(&mut topic, name_of(value)?),
            2 => {
                user.push(user_property(value)?);
                let (last, others) = user.split_last()?;
                let is_new = others.len() < USER_PROPERTIES_MAX && others.iter().all(|(name, _)| *name != last.0);
                is_new.then_some(())
            }
            3 => keep(&mut system, value.bytes()?),
            4 => keep(&mut body, value.bytes()?),
            _ => None,
        })?;
        Self { topic: topic?, user, body: body?, ..System::read(system?)?.sent()? }.checked()
    }

    /// The bounds that hold for several texts together.
    fn checked(self) -> Option<Self> {
        let user = self.user.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        let keys = self.keys.iter().map(|key| key.len()).sum::<usize>();
        (user + keys + self.tag.map_or(0, str::len) <= GRPC_PROPERTIES_BYTES_MAX).then_some(self)
    }

    /// The properties in the order in which message_form.py has them.
    fn write_properties(&self, keys: &str, text: &mut Vec<u8>) {
        text.clear();
        let mut pair = |name: &[u8], value: &[u8]| {
            text.extend_from_slice(name);
            text.push(1);
            text.extend_from_slice(value);
            text.push(2);
        };
        for (name, value) in &self.user {
            pair(name.as_bytes(), value.as_bytes());
        }
        pair(b"UNIQ_KEY", self.message_id.as_bytes());
        pair(b"PGROUP", self.topic.as_bytes());
        if let Some(tag) = self.tag {
            pair(b"TAGS", tag.as_bytes());
        }
        if !keys.is_empty() {
            pair(b"KEYS", keys.as_bytes());
        }
        if !self.trace_context.is_empty() {
            pair(GRPC_TRACE_CONTEXT.as_bytes(), self.trace_context.as_bytes());
        }
        if !self.born_host.is_empty() {
            pair(GRPC_BORN_HOST.as_bytes(), self.born_host.as_bytes());
        }
        text.extend_from_slice(GRPC_BORN_TIMESTAMP.as_bytes());
        text.push(1);
        write_decimal(text, self.born_ms);
        text.push(2);
    }
}

/// The system properties of an ordinary message.
#[derive(Default)]
struct System<'a> {
    tag: Option<&'a str>,
    keys: Vec<&'a str>,
    message_id: Option<&'a str>,
    digest: Option<()>,
    encoding: Option<i32>,
    kind: Option<i32>,
    born_ms: Option<i64>,
    born_host: Option<&'a str>,
    queue_id: Option<i32>,
    trace_context: Option<&'a str>,
}

impl<'a> System<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut found = Self::default();
        read(bytes, |number, value| match number {
            1 => keep(&mut found.tag, worded(value).filter(|tag| !tag.contains('|'))?),
            2 => {
                found.keys.push(worded(value)?);
                Some(())
            }
            3 => keep(&mut found.message_id, value.text()?),
            4 => keep(&mut found.digest, check_digest(value)?),
            5 => keep(&mut found.encoding, value.small().filter(|encoding| *encoding <= IDENTITY)?),
            6 => keep(&mut found.kind, value.small().filter(|kind| *kind <= NORMAL)?),
            7 => keep(&mut found.born_ms, milliseconds(value)?),
            8 => keep(&mut found.born_host, printable(value)?),
            13 => keep(&mut found.queue_id, value.small()?),
            18 => keep(&mut found.trace_context, printable(value)?),
            _ => None,
        })?;
        Some(found)
    }

    fn sent(self) -> Option<Sent<'a>> {
        Some(Sent {
            topic: "",
            user: Vec::new(),
            body: b"",
            message_id: self.message_id.filter(|id| id.len() <= MESSAGE_ID_BYTES_MAX && is_alphanumeric(id.as_bytes()))?,
            tag: self.tag,
            keys: self.keys,
            born_ms: self.born_ms?,
            born_host: self.born_host.unwrap_or_default(),
            trace_context: self.trace_context.unwrap_or_default(),
        })
    }
}

/// A text without control characters.
fn printable(value: Value<'_>) -> Option<&str> {
    value.text().filter(|text| !text.chars().any(char::is_control))
}

/// The same, if it is not blank either.
fn worded(value: Value<'_>) -> Option<&str> {
    printable(value).filter(|text| !text.trim().is_empty())
}

/// The name of a Resource; its namespace means nothing.
fn name_of(value: Value<'_>) -> Option<&str> {
    let (mut namespace, mut name) = (None, None);
    read(value.bytes()?, |number, value| match number {
        1 => keep(&mut namespace, value.text()?),
        2 => keep(&mut name, value.text()?),
        _ => None,
    })?;
    name
}

/// Name and value of a user's property, neither of them empty.
fn user_property(value: Value<'_>) -> Option<(&str, &str)> {
    let (mut name, mut text) = (None, None);
    read(value.bytes()?, |number, value| match number {
        1 => keep(&mut name, printable(value).filter(|text| !text.is_empty())?),
        2 => keep(&mut text, printable(value).filter(|text| !text.is_empty())?),
        _ => None,
    })?;
    Some((name?, text?))
}

/// A Digest: no service reads it, but it has to be one.
fn check_digest(value: Value<'_>) -> Option<()> {
    let (mut kind, mut checksum) = (None, None);
    read(value.bytes()?, |number, value| match number {
        1 => keep(&mut kind, value.small()?),
        2 => keep(&mut checksum, value.text()?),
        _ => None,
    })
}

/// The milliseconds of a Timestamp (aerobee/broker/grpc/times.py).
fn milliseconds(value: Value<'_>) -> Option<i64> {
    let (mut seconds, mut nanos) = (None, None);
    read(value.bytes()?, |number, value| match number {
        1 => keep(&mut seconds, value.large().filter(|seconds| *seconds <= GRPC_SECONDS_MAX)?),
        2 => keep(&mut nanos, value.small().filter(|nanos| *nanos < NANOS_END)?),
        _ => None,
    })?;
    Some(seconds.unwrap_or(0) * 1_000 + i64::from(nanos.unwrap_or(0) / 1_000_000))
}

/// A SendMessageResponse with one entry, both OK.
fn write_response(out: &mut Vec<u8>, message_id: &[u8], queue_offset: i64) {
    let mut status = Vec::with_capacity(8);
    status.push(1 << 3);
    write_varint(&mut status, GRPC_OK);
    write_bytes(&mut status, 2, b"OK");
    let mut entry = Vec::with_capacity(32 + 2 * message_id.len());
    write_bytes(&mut entry, 1, &status);
    write_bytes(&mut entry, 2, message_id);
    write_bytes(&mut entry, 3, message_id);
    if queue_offset != 0 {
        entry.push(4 << 3);
        write_varint(&mut entry, queue_offset as u64);
    }
    write_bytes(out, 1, &status);
    write_bytes(out, 2, &entry);
}
