//! POP's check points and acknowledgements as records of the timer's topic (aerobee/broker/pop/revive_log.py is the
//! reference): laid out and appended in one call.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::constants::{CK_LEAD_MS, POP_PRECISION_MS, PROPERTIES_BYTES_MAX};
use crate::appender::{Appender, Writing};
use crate::outcome::{Outcome, Stop};
use crate::pop_plan::{Found, Place, PopPlan, Turn};
use crate::reader::Limits;
use crate::record::Message;
use crate::topic::{Queue, Topic};


/// Appends to queue 0 of the timer's topic.
#[pyclass(frozen, module = "aerobee_native")]
pub struct PopRecords {
    inner: Mutex<Inner>,
}

struct Inner {
    appender: Appender,
    limits: Option<Limits>,
    timer_topic: Py<PyAny>,
    place: Option<(usize, usize)>, // of the topic and its queue in the appender's lists
    host: Vec<u8>,
    revive_topic: String,
    codes: [i64; 3], // of the tags ck, ack, bAck
    laid_out: Vec<LaidOut>,
    spare: Vec<LaidOut>,
}

/// Parts of a record: body, properties, tags code.
#[derive(Default)]
struct LaidOut {
    body: String,
    text: String,
    code: i64,
}

/// A check point, laid out by Inner::lay_out_check_point().
struct Point<'a> {
    /// Topic, group and broker name, as plain() admits them.
    names: (&'a str, &'a str, &'a str),
    queue_id: i64,
    start_offset: i64,
    offsets: &'a [i64],
    pop_time: i64,
    invisible_ms: i64,
    bits: i64,
    suspend: bool,
}

/// Common fields of check points and acknowledgements.
struct Origin<'py> {
    topic: Bound<'py, PyAny>,
    group: Bound<'py, PyAny>,
    broker_name: Bound<'py, PyAny>,
    queue_id: i64,
    start_offset: i64,
    pop_time: i64,
    offsets: Vec<i64>,
}

#[pymethods]
impl PopRecords {
    #[new]
    #[pyo3(signature = (*, store, store_host, host, waiting, timer_topic, revive_topic, codes))]
    fn new(
        store: Bound<'_, PyAny>,
        store_host: Vec<u8>,
        host: Vec<u8>,
        waiting: Py<PyAny>,
        timer_topic: Py<PyAny>,
        revive_topic: String,
        codes: (i64, i64, i64),
    ) -> PyResult<Self> {
        Ok(Self {
            inner: Mutex::new(Inner {
                appender: Appender::new(&store, store_host, waiting)?,
                limits: None,
                timer_topic,
                place: None,
                host,
                revive_topic,
                codes: [codes.0, codes.1, codes.2],
                laid_out: Vec::new(),
                spare: Vec::new(),
            }),
        })
    }

    /// Write check points (each with its revive queue id), then acknowledgements (revive queue id, revive time), to `queue`.
    ///
    /// Returns their physical offsets, the end of the last record, and when the first of them is due. None: nothing is
    /// written, the reference implementation has to do it.
    #[pyo3(signature = (queue, now_ms, born_ms, points, acks, *, is_sync))]
    fn append<'py>(
        &self,
        queue: Bound<'py, PyAny>,
        now_ms: i64,
        born_ms: i64,
        points: Bound<'py, PyAny>,
        acks: Bound<'py, PyAny>,
        is_sync: bool,
    ) -> PyResult<Option<(Bound<'py, PyList>, i64, i64)>> {
        // Already in use: a callback that waits for one of these records called this writer again.
        let Ok(mut inner) = self.inner.try_lock() else { return Ok(None) };
        let soonest = match inner.lay_out(&points, &acks, born_ms) {
            Ok(soonest) => soonest,
            Err(Stop::Slow) => {
                inner.forget();
                return Ok(None);
            }
            Err(Stop::Fault(error)) => {
                inner.forget();
                return Err(error);
            }
        };
        let written = inner.write_all(&queue, now_ms, born_ms, is_sync)?;
        Ok(written.map(|(offsets, end)| (offsets, end, soonest)))
    }

    /// The common part of equal pops, for take().
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (*, topic, group, broker_name, queue_id, queue_count, count_max, invisible_ms, retries, tag_codes))]
    fn plan(
        &self,
        topic: Bound<'_, PyString>,
        group: Bound<'_, PyString>,
        broker_name: Bound<'_, PyString>,
        queue_id: i64,
        queue_count: i64,
        count_max: i64,
        invisible_ms: i64,
        retries: Vec<(Bound<'_, PyString>, String, i64)>,
        tag_codes: Option<HashSet<i64>>,
    ) -> PyResult<PopPlan> {
        PopPlan::new(&topic, &group, &broker_name, queue_id, queue_count, count_max, invisible_ms, retries, tag_codes)
    }

    /// Read what a pop gets, write its check points to `queue`, and encode its reply. `offsets` is the table of the groups'
    /// offsets, which the caller moves; `pop_time` is the broker's time, `now_ms` the store's.
    ///
    /// Returns the reply, the shares (topic, r, queue id, offsets, next offset, bytes), the physical offsets of the check points,
    /// the end of the last one, when the first is due, and how many messages remain. None: nothing is written, the reference
    /// implementation has to do it.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (plan, queue, offsets, now_ms, pop_time, opaque, revive_queue_id, start, retry_first, highest_first, *, is_sync))]
    fn take<'py>(
        &self,
        plan: &Bound<'py, PopPlan>,
        queue: Bound<'py, PyAny>,
        offsets: Bound<'py, PyDict>,
        now_ms: i64,
        pop_time: i64,
        opaque: i64,
        revive_queue_id: i64,
        start: i64,
        retry_first: bool,
        highest_first: bool,
        is_sync: bool,
    ) -> PyResult<Option<Taken<'py>>> {
        let Ok(mut inner) = self.inner.try_lock() else { return Ok(None) };
        let (py, plan) = (queue.py(), plan.get());
        let config = inner.appender.store.bind(py).getattr(intern!(py, "config"))?;
        if inner.limits.as_ref().is_none_or(|limits| !limits.config.is(&config)) {
            inner.limits = Some(Limits::load(&config)?);
        }
        let Some(limits) = inner.limits.as_ref() else { return Ok(None) };
        let place = Place { appender: &inner.appender, limits, offsets: &offsets };
        let read = plan.read(&place, Turn { start, retry_first, highest_first });
        let found = match inner.appender.errors.check(py, read) {
            Ok(Some(found)) => found,
            Ok(None) | Err(Stop::Slow) => return Ok(None),
            Err(Stop::Fault(error)) => return Err(error),
        };
        let Some(reply) = plan.reply(&found, opaque, pop_time, revive_queue_id) else { return Ok(None) };
        let soonest = match inner.lay_out_shares(py, plan, &found, pop_time, revive_queue_id) {
            Ok(soonest) => soonest,
            Err(stop) => {
                inner.forget();
                return if let Stop::Fault(error) = stop { Err(error) } else { Ok(None) };
            }
        };
        let Some((written, end)) = inner.write_all(&queue, now_ms, pop_time, is_sync)? else { return Ok(None) };
        let shares = found.shares.iter().map(|share| {
            let source = plan.source(share);
            let offsets = PyTuple::new(py, &share.offsets)?;
            (&source.topic, &source.retry, share.queue_id, offsets, share.next_offset, share.size).into_pyobject(py)
        });
        let shares = PyList::new(py, shares.collect::<PyResult<Vec<_>>>()?)?;
        Ok(Some((PyBytes::new(py, &reply), shares, written, end, soonest, found.rest)))
    }
}

/// What take() returns.
type Taken<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>, i64, i64, i64);

impl Inner {
    /// Encode all records; return the due time of the first one. A record that is already due belongs to another topic.
    fn lay_out(&mut self, points: &Bound<'_, PyAny>, acks: &Bound<'_, PyAny>, born_ms: i64) -> Outcome<i64> {
        let mut soonest = i64::MAX;
        for item in points.try_iter().map_err(Stop::Fault)? {
            let due = self.lay_out_point(&item.map_err(Stop::Fault)?, born_ms)?;
            soonest = soonest.min(due);
        }
        for item in acks.try_iter().map_err(Stop::Fault)? {
            let due = self.lay_out_ack(&item.map_err(Stop::Fault)?, born_ms)?;
            soonest = soonest.min(due);
        }
        Ok(soonest)
    }

    fn lay_out_point(&mut self, item: &Bound<'_, PyAny>, born_ms: i64) -> Outcome<i64> {
        let py = item.py();
        let (point, revive_queue_id) = pair(item)?;
        let origin = Origin::read(&point)?;
        let number = |name| -> Outcome<i64> { extract(point.getattr(name)) };
        let invisible_ms = number(intern!(py, "invisible_ms"))?;
        let bits = number(intern!(py, "bit_map"))?;
        let suspend: bool = extract(point.getattr(intern!(py, "suspend")))?;
        if number(intern!(py, "re_put_times"))? != 0 {
            return Err(Stop::Slow);
        }
        let Origin { queue_id, start_offset, pop_time, .. } = origin;
        let names = origin.names()?;
        let offsets = &origin.offsets;
        let point = Point { names, queue_id, start_offset, offsets, pop_time, invisible_ms, bits, suspend };
        self.lay_out_check_point(&point, revive_queue_id, born_ms)
    }

    /// Encode a check point; return when it is due. One that is already due belongs to another topic.
    fn lay_out_check_point(&mut self, point: &Point<'_>, revive_queue_id: i64, born_ms: i64) -> Outcome<i64> {
        let Point { names: (topic, group, broker_name), queue_id, start_offset: start, pop_time, .. } = *point;
        let (invisible_ms, bits, suspend) = (point.invisible_ms, point.bits, point.suspend);
        let deliver_ms = sum(sum(pop_time, invisible_ms)?, -CK_LEAD_MS)?;
        if deliver_ms <= born_ms {
            return Err(Stop::Slow);
        }
        let mut record = self.spare.pop().unwrap_or_default();
        record.code = self.codes[0];
        let body = &mut record.body;
        let _ = write!(body, r#"{{"bm":{bits},"bn":"{broker_name}","c":"{group}","d":["#);
        for (at, offset) in point.offsets.iter().enumerate() {
            let _ = write!(body, "{}{}", if at == 0 { "" } else { "," }, offset.wrapping_sub(start));
        }
        let _ = write!(
            body,
            r#"],"it":{invisible_ms},"n":{},"pt":{pop_time},"q":{queue_id},"reviveTime":{},"ro":0,"so":{start},"sp":{suspend},"t":"{topic}"}}"#,
            point.offsets.len(),
            sum(pop_time, invisible_ms)?,
        );
        let key = format_args!("{topic}@{queue_id}@{start}@{group}@{pop_time}@{broker_name}@ck");
        self.lay_out_text(&mut record.text, deliver_ms, key, "ck", revive_queue_id)?;
        self.laid_out.push(record);
        Ok(deliver_ms)
    }

    /// Encode the check points of a pop.
    fn lay_out_shares(
        &mut self,
        py: Python<'_>,
        plan: &PopPlan,
        found: &Found,
        pop_time: i64,
        revive_queue_id: i64,
    ) -> Outcome<i64> {
        let (group, broker_name) = (plan.group.bind(py), plan.broker_name.bind(py));
        let mut soonest = i64::MAX;
        for share in &found.shares {
            let point = Point {
                names: (plain(plan.source(share).topic.bind(py))?, plain(group)?, plain(broker_name)?),
                queue_id: share.queue_id,
                start_offset: share.start_offset(),
                offsets: &share.offsets,
                pop_time,
                invisible_ms: plan.invisible_ms,
                bits: 0,
                suspend: false,
            };
            soonest = soonest.min(self.lay_out_check_point(&point, revive_queue_id, pop_time)?);
        }
        Ok(soonest)
    }

    fn lay_out_ack(&mut self, item: &Bound<'_, PyAny>, born_ms: i64) -> Outcome<i64> {
        let item = item.cast::<PyTuple>().map_err(|_| Stop::Slow)?;
        let acks = item.get_item(0).map_err(Stop::Fault)?;
        let revive_queue_id: i64 = extract(item.get_item(1))?;
        let due_ms: i64 = extract(item.get_item(2))?;
        let origin = Origin::read(&acks)?;
        if due_ms <= born_ms {
            return Err(Stop::Slow);
        }
        let (topic, group, broker_name) = origin.names()?;
        let (queue_id, start, pop_time) = (origin.queue_id, origin.start_offset, origin.pop_time);
        let mut record = self.spare.pop().unwrap_or_default();
        let body = &mut record.body;
        let rest = format_args!(
            r#","bn":"{broker_name}","c":"{group}","pt":{pop_time},"q":{queue_id},"so":{start},"t":"{topic}"}}"#
        );
        match origin.offsets.as_slice() {
            [] => return Err(Stop::Slow),
            [offset] => {
                record.code = self.codes[1];
                let _ = write!(body, r#"{{"ao":{offset}{rest}"#);
                let key = format_args!("{topic}@{queue_id}@{offset}@{group}@{pop_time}@{broker_name}@ack");
                self.lay_out_text(&mut record.text, due_ms, key, "ack", revive_queue_id)?;
            }
            offsets => {
                record.code = self.codes[2];
                let _ = write!(body, r#"{{"ao":0,"aol":["#);
                let mut list = String::with_capacity(offsets.len() * 8);
                for (at, offset) in offsets.iter().enumerate() {
                    let _ = write!(body, "{}{offset}", if at == 0 { "" } else { "," });
                    let _ = write!(list, "{}{offset}", if at == 0 { "" } else { ", " });
                }
                let _ = write!(body, "]{rest}");
                let key = format_args!("{topic}@{queue_id}@[{list}]@{group}@{pop_time}@bAck");
                self.lay_out_text(&mut record.text, due_ms, key, "bAck", revive_queue_id)?;
            }
        }
        self.laid_out.push(record);
        Ok(due_ms)
    }

    /// The properties of a record that waits in the timer.
    fn lay_out_text(
        &self,
        text: &mut String,
        deliver_ms: i64,
        unique_key: std::fmt::Arguments<'_>,
        tag: &str,
        revive_queue_id: i64,
    ) -> Outcome<()> {
        let out_ms = (deliver_ms - 1).div_euclid(POP_PRECISION_MS) * POP_PRECISION_MS;
        let _ = write!(
            text,
            "TIMER_OUT_MS\x01{out_ms}\x02TIMER_DELIVER_MS\x01{deliver_ms}\x02UNIQ_KEY\x01{unique_key}\x02TAGS\x01{tag}\x02\
             REAL_TOPIC\x01{}\x02REAL_QID\x01{revive_queue_id}\x02",
            self.revive_topic
        );
        if text.len() > PROPERTIES_BYTES_MAX { Err(Stop::Slow) } else { Ok(()) }
    }

    /// Append the encoded records, and forget them; return their physical offsets, and the end of the last one. None: nothing is written.
    fn write_all<'py>(
        &mut self,
        queue: &Bound<'py, PyAny>,
        now_ms: i64,
        born_ms: i64,
        is_sync: bool,
    ) -> PyResult<Option<(Bound<'py, PyList>, i64)>> {
        let py = queue.py();
        let offsets = PyList::empty(py);
        let host = self.host.clone();
        let mut writing = Writing::new(py, &host, now_ms, is_sync);
        let written = self.write(&mut writing, queue, born_ms, &offsets);
        self.forget();
        let ended = self.appender.end(&mut writing);
        match written {
            Ok(end) => ended.map(|_| Some((offsets, end))),
            Err(Stop::Slow) => ended.map(|_| None),
            Err(Stop::Fault(error)) => Err(error),
        }
    }

    /// Append the encoded records, back to back in one file; set their offsets, and return the end.
    fn write(
        &mut self,
        writing: &mut Writing<'_>,
        queue: &Bound<'_, PyAny>,
        born_ms: i64,
        offsets: &Bound<'_, PyList>,
    ) -> Outcome<i64> {
        let (topic, number) = self.place(queue)?;
        let appender = &mut self.appender;
        let sizes = self.laid_out.iter().map(|each| appender.record_bytes(writing, topic, each.body.len(), each.text.len()));
        let total = sizes.sum();
        appender.make_room(writing, number, self.laid_out.len(), 0, total)?;
        let mut end = -1;
        for each in &self.laid_out {
            let message = Message {
                body: each.body.as_bytes(),
                properties: each.text.as_bytes(),
                tag_code: each.code,
                flag: 0,
                sys_flag: 0,
                born_timestamp: born_ms.into(),
                reconsume_times: 0,
                prepared_offset: 0,
            };
            let placed = appender.append(writing, topic, number, &message, &[])?;
            offsets.append(placed.physical_offset).map_err(Stop::Fault)?;
            end = placed.physical_offset + placed.size as i64;
        }
        Ok(end)
    }

    /// The numbers of the topic and its queue, which is another object when the topic was deleted meanwhile.
    fn place(&mut self, queue: &Bound<'_, PyAny>) -> Outcome<(usize, usize)> {
        if let Some((topic, number)) = self.place
            && self.appender.topics.queues[number].object.is(queue)
        {
            return Ok((topic, number));
        }
        if !self.appender.is_plain_queue(queue) {
            return Err(Stop::Slow);
        }
        let py = queue.py();
        let topic = Topic::load(py, self.timer_topic.bind(py)).map_err(Stop::Fault)?;
        let key = (&topic.py_name, 0).into_pyobject(py).map_err(Stop::Fault)?.unbind();
        let topics = &mut self.appender.topics;
        topics.clear(py);
        let number = topics.add(topic);
        topics.queues.push(Queue { object: queue.clone().unbind(), key, id: 0, reply_start: Vec::new(), live: None });
        self.place = Some((number, 0));
        Ok((number, 0))
    }

    /// Keep the memory of the encoded records for the next call.
    fn forget(&mut self) {
        for mut each in self.laid_out.drain(..) {
            each.body.clear();
            each.text.clear();
            if self.spare.len() < 64 {
                self.spare.push(each);
            }
        }
    }
}

impl<'py> Origin<'py> {
    fn read(object: &Bound<'py, PyAny>) -> Outcome<Self> {
        let py = object.py();
        let get = |name| object.getattr(name).map_err(Stop::Fault);
        Ok(Self {
            topic: get(intern!(py, "topic"))?,
            group: get(intern!(py, "group"))?,
            broker_name: get(intern!(py, "broker_name"))?,
            queue_id: extract(object.getattr(intern!(py, "queue_id")))?,
            start_offset: extract(object.getattr(intern!(py, "start_offset")))?,
            pop_time: extract(object.getattr(intern!(py, "pop_time")))?,
            offsets: extract(object.getattr(intern!(py, "offsets")))?,
        })
    }

    /// Topic, group and broker name, when JSON has them as they are.
    fn names(&self) -> Outcome<(&str, &str, &str)> {
        Ok((plain(&self.topic)?, plain(&self.group)?, plain(&self.broker_name)?))
    }
}

/// A text without anything that JSON escapes.
fn plain<'a>(text: &'a Bound<'_, PyAny>) -> Outcome<&'a str> {
    let text: &str = text.extract().map_err(|_| Stop::Slow)?;
    let is_plain = text.bytes().all(|byte| byte >= 0x20 && byte != b'"' && byte != b'\\');
    if is_plain { Ok(text) } else { Err(Stop::Slow) }
}

/// A check point and the id of its revive queue.
fn pair<'py>(item: &Bound<'py, PyAny>) -> Outcome<(Bound<'py, PyAny>, i64)> {
    let item = item.cast::<PyTuple>().map_err(|_| Stop::Slow)?;
    Ok((item.get_item(0).map_err(Stop::Fault)?, extract(item.get_item(1))?))
}

/// A value of the kind that is expected; another one is for the reference implementation.
fn extract<'py, T: for<'a> FromPyObject<'a, 'py>>(value: PyResult<Bound<'py, PyAny>>) -> Outcome<T> {
    value.map_err(Stop::Fault)?.extract().map_err(|_| Stop::Slow)
}

fn sum(one: i64, other: i64) -> Outcome<i64> {
    one.checked_add(other).ok_or(Stop::Slow)
}
