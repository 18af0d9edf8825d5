//! Sends of one message (10, 310): from the header's fields to the record, its entries and the reply
//! (aerobee/broker/fastpath/send.py is the Python counterpart, aerobee/broker/send/send_service.py the reference of both).

use crate::constants::{ELIGIBLE_SYS_FLAG, PROPERTIES_BYTES_MAX, SEND_MESSAGE, SEND_MESSAGE_V2};
use crate::outcome::{Outcome, Stop};
use crate::record::Message;
use crate::shared::{Answer, Burst, FrameHandler, Gate, SHORT_NAMES, Request, Shared, WORDS};
use crate::text::{is_alphanumeric, read_properties};


pub struct Sends;

impl FrameHandler for Sends {
    fn codes(&self) -> &'static [i64] {
        &[SEND_MESSAGE_V2, SEND_MESSAGE]
    }

    fn gate(&self) -> Gate {
        Gate::Sends
    }

    fn is_silent(&self) -> bool {
        true
    }

    fn serve(&mut self, shared: &mut Shared, burst: &mut Burst<'_>, request: &Request<'_>) -> Outcome<()> {
        let mut text = std::mem::take(&mut shared.scratch.properties);
        let mut hashes = std::mem::take(&mut shared.scratch.hashes);
        let answer = store(shared, burst, request, &mut text, &mut hashes);
        shared.scratch.properties = text;
        shared.scratch.hashes = hashes;
        shared.reply(burst, request, &answer?);
        Ok(())
    }
}

/// Store one message. `text` and `hashes` are buffers.
fn store(
    shared: &mut Shared,
    burst: &mut Burst<'_>,
    request: &Request<'_>,
    text: &mut Vec<u8>,
    hashes: &mut Vec<i32>,
) -> Outcome<Answer> {
    let names = if request.code == SEND_MESSAGE { &WORDS } else { &SHORT_NAMES };
    let fields = request.fields;
    if names.iter().any(|name| fields.get(*name).is_missing()) || !fields.get(names[7]).is_no_batch() {
        return Err(Stop::Slow);
    }
    let [topic, queue, sys_flag, born, flag, properties, tries, _] = names.map(|name| fields.get(name));
    // First what tells half messages apart: nothing else of them is read here.
    let sys_flag = sys_flag.small().filter(|flag| flag & !ELIGIBLE_SYS_FLAG == 0).ok_or(Stop::Slow)?;
    let (topic, queue) = shared.find(burst.writing.py, topic, queue)?;
    if !properties.text_into(text) {
        return Err(Stop::Slow);
    }
    let pairs = read_properties(text, &shared.special);
    if !pairs.is_paired() || pairs.special {
        return Err(Stop::Slow);
    }
    let unique_key = pairs.unique_key.filter(|key| is_alphanumeric(key)).ok_or(Stop::Slow)?;
    shared.set_unique_key(unique_key);
    hashes.clear();
    let tag_code = shared.hash(topic, &pairs, hashes);
    let (is_open, waits) = (pairs.part_count % 2 == 0, burst.waits(pairs.waits())?);
    if is_open {
        text.push(2);
    }
    text.extend_from_slice(&shared.identity.own_properties);
    if text.len() > PROPERTIES_BYTES_MAX || request.body.len() > shared.max_message_bytes {
        return Err(Stop::Slow);
    }
    let message = Message {
        body: request.body,
        properties: text,
        tag_code,
        flag: flag.small().ok_or(Stop::Slow)?,
        reconsume_times: tries.small().ok_or(Stop::Slow)?,
        sys_flag,
        born_timestamp: born.born_timestamp().ok_or(Stop::Slow)?,
        prepared_offset: 0,
    };
    let placed = shared.appender.append(&mut burst.writing, topic, queue, &message, hashes)?;
    shared.clear_message_ids();
    shared.add_message_id(placed.physical_offset);
    shared.appender.topics.count_request(topic);
    Ok(Answer { queue, queue_offset: placed.queue_offset, waits })
}
