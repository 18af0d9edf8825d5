//! Sends: one message or a batch, from the header's fields to the record, the queue entry and the reply.

use pyo3::intern;
use pyo3::prelude::*;

use crate::binary_header;
use crate::field::{Fields, Name};
use crate::lane::{Burst, Form, Outcome, SendNames, State, Stop};
use crate::text::{is_alphanumeric, java_hash_from, read_properties, write_decimal, Properties};

/// topic, queue id, sys flag, born timestamp, flag, properties, reconsume times, batch
pub const LETTERS: SendNames = [Name::B, Name::E, Name::F, Name::G, Name::H, Name::I, Name::J, Name::M];
pub const WORDS: SendNames = [
    Name::Topic, Name::QueueId, Name::SysFlag, Name::BornTimestamp, Name::Flag, Name::Properties,
    Name::ReconsumeTimes, Name::Batch,
];

pub const PROPERTIES_BYTES_MAX: usize = 32_767;
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
pub const ORDINARY_SYS_FLAG: i64 = 0x1 | 0x2 | 0x700; // compressed, several tags, kind of compression
pub const BORN_HOST_V6: i64 = 0x10;
pub const STORE_HOST_V6: i64 = 0x20;
const BATCH_HEAD_BYTES: usize = 20;
const BATCH_ENTRY_BYTES_MIN: usize = BATCH_HEAD_BYTES + 2;
const QUEUE_ENTRY_BYTES: i64 = 20;

/// Buffers that keep their memory between messages.
#[derive(Default)]
pub struct Scratch {
    pub properties: Vec<u8>,
    pub hashes: Vec<i32>,
    pub record: Vec<u8>,
    pub message_ids: Vec<u8>,
    pub unique_key: Vec<u8>,
    pub recall_handle: Vec<u8>, // of a timer message, else empty
    pub body: Vec<u8>,
    pub head: Vec<u8>, // of a pull's reply
    pub replies: Vec<u8>,
}

/// What a send's reply says; message ids and unique key are in the scratch buffers.
pub struct Answer {
    pub queue: usize,
    pub queue_offset: i64,
    pub waits: bool,
}

/// One message to be laid out. Numbers were read, but may not fit their fields.
pub struct Message<'a> {
    pub body: &'a [u8],
    pub properties: &'a [u8],
    pub tag_code: i64,
    pub flag: i64,
    pub sys_flag: i64,
    pub born_timestamp: i128,
    pub reconsume_times: i64,
    /// Of a committed message: where its half message lies.
    pub prepared_offset: i64,
}

impl State {
    /// Store one message.
    pub fn single(
        &mut self,
        burst: &mut Burst<'_>,
        names: &SendNames,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Outcome<Answer> {
        let [topic, queue, sys_flag, born, flag, properties, tries, _] = names.map(|name| fields.get(name));
        let (topic, queue) = self.place(burst, topic, queue)?;
        let mut text = std::mem::take(&mut self.scratch.properties);
        let mut hashes = std::mem::take(&mut self.scratch.hashes);
        let outcome = (|| {
            if !properties.text_into(&mut text) {
                return Err(Stop::Slow);
            }
            let pairs = read_properties(&text, &self.special);
            if !pairs.is_paired() || pairs.special {
                return Err(Stop::Slow);
            }
            let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
            let sys_flag = sys_flag.small().filter(|flag| flag & !ORDINARY_SYS_FLAG == 0).ok_or(Stop::Slow)?;
            self.scratch.unique_key.clear();
            self.scratch.unique_key.extend_from_slice(unique_key);
            hashes.clear();
            let tag_code = self.hash(topic, &pairs, &mut hashes);
            let (is_open, waits) = (pairs.part_count % 2 == 0, pairs.wait != Some(b"false"));
            if is_open {
                text.push(2);
            }
            text.extend_from_slice(&self.own_properties);
            if text.len() > PROPERTIES_BYTES_MAX || body.len() > burst.max_message_bytes {
                return Err(Stop::Slow);
            }
            let message = Message {
                body,
                properties: &text,
                tag_code,
                flag: flag.small().ok_or(Stop::Slow)?,
                reconsume_times: tries.small().ok_or(Stop::Slow)?,
                sys_flag,
                born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
                prepared_offset: 0,
            };
            self.scratch.message_ids.clear();
            let queue_offset = self.append(burst, topic, queue, &message, &hashes)?;
            self.topics[topic].request_count += 1;
            Ok(Answer { queue, queue_offset, waits: self.holds && waits })
        })();
        self.scratch.properties = text;
        self.scratch.hashes = hashes;
        outcome
    }

    /// Index hashes of a message, in the order of the definition; returns its tags code.
    pub fn hash(&self, topic: usize, pairs: &Properties<'_>, hashes: &mut Vec<i32>) -> i64 {
        let topic = &self.topics[topic];
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

    /// Write the record and its queue entry, note its index entries; return the queue offset.
    pub fn append(
        &mut self,
        burst: &mut Burst<'_>,
        topic: usize,
        queue: usize,
        message: &Message<'_>,
        hashes: &[i32],
    ) -> Outcome<i64> {
        let py = burst.py;
        let live = self.live(burst, queue).map_err(Stop::Fault)?;
        if live.max_offset >= live.room {
            self.make_queue_room(burst, queue, 1)?;
        }
        self.make_index_room(burst, hashes.len())?;
        let head_bytes = 72 + burst.born_host.len() + self.store_host.len();
        let size = head_bytes + message.body.len() + self.topics[topic].field.len() + 2 + message.properties.len();
        let offset = self.place_record(burst, size)?;
        let queue_id = self.queues[queue].id;
        let live = self.live(burst, queue).map_err(Stop::Fault)?;
        let queue_offset = live.max_offset;
        let mut record = std::mem::take(&mut self.scratch.record);
        let fits = self.lay_out(burst, &mut record, topic, queue_id, queue_offset, offset, size, message);
        self.scratch.record = record;
        fits?;
        // Record first, entries second: whoever sees the entry reads the record, and recovery makes what is missing.
        let log = burst.log.as_mut().ok_or(Stop::Slow)?;
        if !log.window.write(offset - log.base, &self.scratch.record) {
            return Err(Stop::Fault(beyond("a record")));
        }
        log.end = offset + size as i64;
        log.is_changed = true;
        let state = &mut self.queues[queue];
        let live = state.live.as_mut().ok_or(Stop::Slow)?;
        let mut entry = [0; QUEUE_ENTRY_BYTES as usize];
        entry[..8].copy_from_slice(&offset.to_be_bytes());
        entry[8..12].copy_from_slice(&(size as i32).to_be_bytes());
        entry[12..].copy_from_slice(&message.tag_code.to_be_bytes());
        if !live.window.write((queue_offset - live.base) * QUEUE_ENTRY_BYTES, &entry) {
            return Err(Stop::Fault(beyond("a queue entry")));
        }
        live.max_offset = queue_offset + 1;
        live.is_changed = true;
        let (is_dirty, notify) = (live.is_dirty, live.notify);
        live.is_dirty = true;
        if !is_dirty {
            state.object.bind(py).call_method1(intern!(py, "mark_dirty"), (offset,)).map_err(Stop::Fault)?;
        }
        self.index.entries.extend(hashes.iter().map(|hash| (*hash, offset)));
        self.index.room -= hashes.len() as i64;
        if self.topics[topic].count == 0 {
            burst.touched.push(topic);
        }
        let counts = &mut self.topics[topic];
        counts.count += 1;
        counts.byte_count += size as u64;
        burst.last_offset = offset;
        self.add_message_id(offset);
        if notify {
            self.settle(burst).map_err(Stop::Fault)?;
            let queue = &self.queues[queue].object;
            let arguments = (queue, offset, burst.now_ms, message.tag_code);
            self.store.bind(py).call_method1(intern!(py, "announce"), arguments).map_err(Stop::Fault)?;
        }
        Ok(queue_offset)
    }

    /// Lay the record out in `record`. A number that does not fit its field is for the handlers.
    #[allow(clippy::too_many_arguments)]
    fn lay_out(
        &self,
        burst: &Burst<'_>,
        record: &mut Vec<u8>,
        topic: usize,
        queue_id: i32,
        queue_offset: i64,
        offset: i64,
        size: usize,
        message: &Message<'_>,
    ) -> Outcome<()> {
        let sys_flag = message.sys_flag
            | if burst.born_host.len() == 8 { 0 } else { BORN_HOST_V6 }
            | if self.store_host.len() == 8 { 0 } else { STORE_HOST_V6 };
        let size = u32::try_from(size).map_err(|_| Stop::Slow)?;
        let flag = i32::try_from(message.flag).map_err(|_| Stop::Slow)?;
        let sys_flag = i32::try_from(sys_flag).map_err(|_| Stop::Slow)?;
        let born_timestamp = i64::try_from(message.born_timestamp).map_err(|_| Stop::Slow)?;
        let reconsume_times = i32::try_from(message.reconsume_times).map_err(|_| Stop::Slow)?;
        record.clear();
        record.reserve(size as usize);
        record.extend_from_slice(&size.to_be_bytes());
        record.extend_from_slice(&MAGIC_V1.to_be_bytes());
        record.extend_from_slice(&(crc32fast::hash(message.body) & 0x7FFF_FFFF).to_be_bytes());
        record.extend_from_slice(&queue_id.to_be_bytes());
        record.extend_from_slice(&flag.to_be_bytes());
        record.extend_from_slice(&queue_offset.to_be_bytes());
        record.extend_from_slice(&offset.to_be_bytes());
        record.extend_from_slice(&sys_flag.to_be_bytes());
        record.extend_from_slice(&born_timestamp.to_be_bytes());
        record.extend_from_slice(&burst.born_host);
        record.extend_from_slice(&burst.now_ms.to_be_bytes());
        record.extend_from_slice(&self.store_host);
        record.extend_from_slice(&reconsume_times.to_be_bytes());
        record.extend_from_slice(&message.prepared_offset.to_be_bytes());
        record.extend_from_slice(&(message.body.len() as u32).to_be_bytes());
        record.extend_from_slice(message.body);
        record.extend_from_slice(&self.topics[topic].field);
        record.extend_from_slice(&(message.properties.len() as u16).to_be_bytes());
        record.extend_from_slice(message.properties);
        Ok(())
    }

    /// Take space for queue entries; the queue's numbers are loaded again.
    fn make_queue_room(&mut self, burst: &mut Burst<'_>, queue: usize, count: usize) -> Outcome<()> {
        let py = burst.py;
        self.release(burst).map_err(Stop::Fault)?;
        let made = self.queues[queue].object.bind(py).call_method1(intern!(py, "make_room"), (count,));
        self.check(py, made)?;
        self.live(burst, queue).map_err(Stop::Fault)?;
        Ok(())
    }

    /// Take space for `count` index entries, in a new file if need be.
    fn make_index_room(&mut self, burst: &mut Burst<'_>, count: usize) -> Outcome<()> {
        let py = burst.py;
        if !burst.has_index_room {
            self.load_index_room(py, false)?;
            burst.has_index_room = true;
        }
        if self.index.room >= count as i64 {
            return Ok(());
        }
        self.write_index(burst).map_err(Stop::Fault)?;
        let index = self.index_object.clone_ref(py).into_bound(py);
        let has_room = index.call_method1(intern!(py, "has_room"), (count,)).and_then(|has| has.is_truthy());
        if !self.check(py, has_room)? {
            let made = index.call_method1(intern!(py, "make_room"), (count, burst.now_ms));
            self.check(py, made)?;
        }
        self.load_index_room(py, true)
    }

    fn load_index_room(&mut self, py: Python<'_>, again: bool) -> Outcome<()> {
        self.index.load_room(self.index_files.as_ref().map(|files| files.bind(py)), again).map_err(Stop::Fault)
    }

    /// Where a record of `size` bytes goes; the log may roll to its next file.
    fn place_record(&mut self, burst: &mut Burst<'_>, size: usize) -> Outcome<i64> {
        let py = burst.py;
        let log = self.log(burst).map_err(Stop::Fault)?;
        if log.end + size as i64 <= log.limit {
            return Ok(log.end);
        }
        self.release(burst).map_err(Stop::Fault)?;
        let placed = self.log_object.bind(py).call_method1(intern!(py, "place"), (size,));
        let offset = self.check(py, placed)?.extract::<i64>().map_err(Stop::Fault)?;
        self.log(burst).map_err(Stop::Fault)?;
        Ok(offset)
    }

    /// Add an offset message id: upper-case hex of the packed store host and the physical offset.
    fn add_message_id(&mut self, offset: i64) {
        let ids = &mut self.scratch.message_ids;
        if !ids.is_empty() {
            ids.push(b',');
        }
        ids.extend_from_slice(&self.store_host_hex);
        let mut hex = [0; 16];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(offset.to_be_bytes()) {
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        ids.extend_from_slice(&hex);
    }

    /// Store the messages of a batch, back to back in one file.
    pub fn batch(
        &mut self,
        burst: &mut Burst<'_>,
        names: &SendNames,
        fields: &Fields<'_>,
        body: &[u8],
    ) -> Outcome<Answer> {
        let [topic, queue, sys_flag, born, _, properties, tries, _] = names.map(|name| fields.get(name));
        let (topic, queue) = self.place(burst, topic, queue)?;
        let text = properties.text().ok_or(Stop::Slow)?;
        let outer = read_properties(&text, &self.special);
        let sys_flag = sys_flag.number().ok_or(Stop::Slow)?;
        let born_timestamp = i128::from(born.number().ok_or(Stop::Slow)?);
        let reconsume_times = tries.number().ok_or(Stop::Slow)?;
        let unique_key = outer.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
        if outer.delay || sys_flag & !ORDINARY_SYS_FLAG != 0 || body.len() > burst.max_message_bytes {
            return Err(Stop::Slow);
        }
        let entries = cut_batch(body).ok_or(Stop::Slow)?;
        let fixed_bytes = 72 + burst.born_host.len() + self.store_host.len() + self.topics[topic].field.len() + 2;
        let mut hashes: Vec<i32> = Vec::with_capacity(entries.len() * 2);
        let mut messages: Vec<(Message<'_>, usize)> = Vec::with_capacity(entries.len());
        let mut total = 0;
        for entry in &entries {
            std::str::from_utf8(entry.properties).map_err(|_| Stop::Slow)?;
            let pairs = read_properties(entry.properties, &self.special);
            if !pairs.is_paired() {
                return Err(Stop::Slow);
            }
            let tag_code = self.hash(topic, &pairs, &mut hashes);
            total += fixed_bytes + entry.body.len() + entry.properties.len();
            let message = Message {
                body: entry.body,
                properties: entry.properties,
                tag_code,
                flag: i64::from(entry.flag),
                sys_flag,
                born_timestamp,
                reconsume_times,
                prepared_offset: 0,
            };
            messages.push((message, hashes.len()));
        }
        // Everything that can fail comes first: room for all of it in one file, and numbers that fit their fields.
        let count = messages.len();
        let live = self.live(burst, queue).map_err(Stop::Fault)?;
        if live.max_offset + count as i64 > live.room {
            self.make_queue_room(burst, queue, count)?;
            let live = self.live(burst, queue).map_err(Stop::Fault)?;
            if live.max_offset + count as i64 > live.room {
                return Err(Stop::Slow);
            }
        }
        self.make_index_room(burst, hashes.len())?;
        if i32::try_from(reconsume_times).is_err() {
            return Err(Stop::Slow);
        }
        self.place_record(burst, total)?;
        let waits = self.holds && outer.wait != Some(b"false");
        self.scratch.message_ids.clear();
        self.scratch.unique_key.clear();
        self.scratch.unique_key.extend_from_slice(unique_key);
        let mut first = -1;
        let mut start = 0;
        for (message, end) in &messages {
            let queue_offset = self.append(burst, topic, queue, message, &hashes[start..*end])?;
            start = *end;
            if first < 0 {
                first = queue_offset;
            }
        }
        self.topics[topic].request_count += 1;
        Ok(Answer { queue, queue_offset: first, waits })
    }

    /// Write the reply to a send.
    pub fn reply(&mut self, burst: &mut Burst<'_>, form: Form, opaque: i64, answer: &Answer) {
        let out = if answer.waits { &mut burst.held } else { &mut burst.replies };
        let queue = &self.queues[answer.queue];
        let Scratch { message_ids, unique_key, recall_handle, .. } = &self.scratch;
        if form == Form::Json {
            let start = out.len();
            out.extend_from_slice(&[0; 8]);
            out.extend_from_slice(&queue.reply_start);
            out.extend_from_slice(unique_key);
            out.extend_from_slice(b"\",\"msgId\":\"");
            out.extend_from_slice(message_ids);
            out.extend_from_slice(&self.reply_fields);
            out.push(b'"');
            write_decimal(out, answer.queue_offset);
            if !recall_handle.is_empty() {
                out.extend_from_slice(b"\",\"recallHandle\":\"");
                out.extend_from_slice(recall_handle);
            }
            out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
            write_decimal(out, opaque);
            out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
            write_decimal(out, i64::from(binary_header::REPLY_VERSION));
            out.push(b'}');
            let header_bytes = out.len() - start - 8;
            out[start..start + 4].copy_from_slice(&(header_bytes as u32 + 4).to_be_bytes());
            out[start + 4..start + 8].copy_from_slice(&(header_bytes as u32).to_be_bytes());
        } else {
            let queue_id = queue.id.to_string();
            let queue_offset = answer.queue_offset.to_string();
            let mut entries: Vec<(&[u8], &[u8])> = vec![
                (b"queueId", queue_id.as_bytes()),
                (b"transactionId", unique_key),
                (b"msgId", message_ids),
            ];
            entries.extend(self.reply_ext.iter().map(|(name, value)| (name.as_slice(), value.as_slice())));
            entries.push((b"queueOffset", queue_offset.as_bytes()));
            binary_header::write_reply(out, opaque, b"", &entries, 0);
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

struct BatchEntry<'a> {
    flag: i32,
    body: &'a [u8],
    properties: &'a [u8],
}

/// Cut a batch body into its messages (send_header.parse_batch); None for lying sizes or an empty batch.
fn cut_batch(mut rest: &[u8]) -> Option<Vec<BatchEntry<'_>>> {
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| Some(i32::from_be_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        if rest.len() < BATCH_ENTRY_BYTES_MIN {
            return None;
        }
        let size = usize::try_from(word(0)?).ok()?;
        let body_bytes = usize::try_from(word(16)?).ok()?;
        if size < BATCH_ENTRY_BYTES_MIN || size > rest.len() || body_bytes > size - BATCH_ENTRY_BYTES_MIN {
            return None;
        }
        let properties_at = BATCH_ENTRY_BYTES_MIN + body_bytes;
        let properties_bytes = usize::from(u16::from_be_bytes([rest[properties_at - 2], rest[properties_at - 1]]));
        if properties_bytes > PROPERTIES_BYTES_MAX || properties_at + properties_bytes != size {
            return None;
        }
        entries.push(BatchEntry {
            flag: word(12)?,
            body: &rest[BATCH_HEAD_BYTES..properties_at - 2],
            properties: &rest[properties_at..size],
        });
        rest = &rest[size..];
    }
    (!entries.is_empty()).then_some(entries)
}

fn beyond(what: &str) -> PyErr {
    pyo3::exceptions::PyBufferError::new_err(format!("{what} lies beyond its file"))
}
