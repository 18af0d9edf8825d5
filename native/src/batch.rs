//! Batches (320): several messages for one queue, stored back to back in one file (as
//! aerobee/broker/fastpath/batch.py, its Python counterpart).

use crate::constants::{
    BATCH_ENTRIES_MAX, BATCH_ENTRY_HEAD_BYTES, BATCH_HASHES_MAX, BATCH_MESSAGE_PROPERTIES, BATCH_PROPERTIES,
    ELIGIBLE_SYS_FLAG, PROPERTIES_BYTES_MAX, SEND_BATCH_MESSAGE,
};
use crate::outcome::{Outcome, Stop};
use crate::record::Message;
use crate::shared::{Answer, Burst, FrameHandler, Gate, SHORT_NAMES, Request, Shared};
use crate::text::{NameSet, is_alphanumeric, read_properties};

const ENTRY_BYTES_MIN: usize = BATCH_ENTRY_HEAD_BYTES + 2;

pub struct Batches {
    /// Properties of a batch, and of a message in it, with which it is for the handlers.
    excluded: NameSet,
    excluded_inside: NameSet,
}

impl Batches {
    pub fn new() -> Self {
        let names = |names: &[&str]| NameSet::new(names.iter().map(|name| (*name).to_owned()));
        Self { excluded: names(&BATCH_PROPERTIES), excluded_inside: names(&BATCH_MESSAGE_PROPERTIES) }
    }
}

impl FrameHandler for Batches {
    fn codes(&self) -> &'static [i64] {
        &[SEND_BATCH_MESSAGE]
    }

    fn gate(&self) -> Gate {
        Gate::Sends
    }

    fn is_silent(&self) -> bool {
        true
    }

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        let answer = self.store(shared, burst, request)?;
        shared.reply(burst, request, &answer);
        Ok(())
    }
}

impl Batches {
    /// Store the messages of a batch.
    fn store(&self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<Answer> {
        if SHORT_NAMES.iter().any(|name| request.fields.get(*name).is_missing()) {
            return Err(Stop::Slow);
        }
        let [topic, queue, sys_flag, born, _, properties, tries, _] = SHORT_NAMES.map(|name| request.fields.get(name));
        let (topic, queue) = shared.find(burst.writing.py, topic, queue)?;
        let text = properties.text().ok_or(Stop::Slow)?;
        let outer = read_properties(&text, &self.excluded);
        let sys_flag = sys_flag.number().ok_or(Stop::Slow)?;
        let born_timestamp = i128::from(born.number().ok_or(Stop::Slow)?);
        let reconsume_times = tries.number().ok_or(Stop::Slow)?;
        let unique_key = outer.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
        if !outer.is_paired() || outer.special || sys_flag & !ELIGIBLE_SYS_FLAG != 0 || request.body.len() > shared.max_message_bytes {
            return Err(Stop::Slow);
        }
        let entries = cut_batch(request.body).ok_or(Stop::Slow)?;
        let mut hashes: Vec<i32> = Vec::with_capacity(entries.len() * 2);
        let mut messages: Vec<(Message<'_>, usize)> = Vec::with_capacity(entries.len());
        let mut total = 0;
        for entry in &entries {
            std::str::from_utf8(entry.properties).map_err(|_| Stop::Slow)?;
            let pairs = read_properties(entry.properties, &self.excluded_inside);
            if !pairs.is_paired() || pairs.special {
                return Err(Stop::Slow);
            }
            if hashes.len() > BATCH_HASHES_MAX {
                return Err(Stop::Slow);
            }
            let tag_code = shared.hash(topic, &pairs, &mut hashes);
            total += shared.appender.record_bytes(&burst.writing, topic, entry.body.len(), entry.properties.len());
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
        // Everything that can fail comes first: space for all of it in one file, and numbers that fit their fields.
        if i32::try_from(reconsume_times).is_err() {
            return Err(Stop::Slow);
        }
        let waits = burst.waits(outer.waits())?;
        let appender = &mut shared.appender;
        let offset = appender.make_room(&mut burst.writing, queue, messages.len(), hashes.len(), total)?;
        let mut start = 0;
        let mut run = messages.iter().map(|(message, end)| {
            let own = &hashes[start..*end];
            start = *end;
            (message, own)
        });
        // A listener looks only at the newest message that it is called with.
        let queue_offset = if appender.is_awaited(&mut burst.writing, queue).map_err(Stop::Fault)? {
            let mut first = None;
            for (message, hashes) in run {
                let placed = appender.append(&mut burst.writing, topic, queue, message, hashes)?;
                first.get_or_insert(placed.queue_offset);
            }
            first.ok_or(Stop::Slow)?
        } else {
            appender.append_run(&mut burst.writing, topic, queue, offset, &mut run)?.queue_offset
        };
        appender.topics.count_request(topic);
        shared.clear_message_ids();
        shared.set_unique_key(unique_key);
        let mut next = offset;
        for (message, _) in &messages {
            shared.add_message_id(next);
            next += shared.appender.record_bytes(&burst.writing, topic, message.body.len(), message.properties.len()) as i64;
        }
        Ok(Answer { queue, queue_offset, waits })
    }
}

struct BatchEntry<'a> {
    flag: i32,
    body: &'a [u8],
    properties: &'a [u8],
}

/// Cut a batch body into its messages (send_header.parse_batch); None for wrong sizes, an empty batch or one that is
/// too large.
fn cut_batch(mut rest: &[u8]) -> Option<Vec<BatchEntry<'_>>> {
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let word = |at: usize| Some(i32::from_be_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        if rest.len() < ENTRY_BYTES_MIN || entries.len() == BATCH_ENTRIES_MAX {
            return None;
        }
        let size = usize::try_from(word(0)?).ok()?;
        let body_bytes = usize::try_from(word(16)?).ok()?;
        if size < ENTRY_BYTES_MIN || size > rest.len() || body_bytes > size - ENTRY_BYTES_MIN {
            return None;
        }
        let properties_at = ENTRY_BYTES_MIN + body_bytes;
        let properties_bytes = usize::from(u16::from_be_bytes([rest[properties_at - 2], rest[properties_at - 1]]));
        if properties_bytes > PROPERTIES_BYTES_MAX || properties_at + properties_bytes != size {
            return None;
        }
        entries.push(BatchEntry {
            flag: word(12)?,
            body: &rest[BATCH_ENTRY_HEAD_BYTES..properties_at - 2],
            properties: &rest[properties_at..size],
        });
        rest = &rest[size..];
    }
    (!entries.is_empty()).then_some(entries)
}
