//! Authorizations of pulls, cached by all values that they depend on (aerobee/broker/fastpath/authorizations.py creates
//! them).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::constants::{AUTHORIZATIONS_MAX, PULL_SUBSCRIPTION, SQL_PREFIX};
use crate::field::{Fields, Name};
use crate::filter::Filter;
use crate::outcome::{Errors, Outcome, Stop};

/// One permitted kind of pull (seam.Authorization).
pub struct Authorization {
    pub object: Py<PyAny>,
    pub topic: Py<PyAny>,
    pub queue_count: i64,
    pub tag_codes: Option<HashSet<i64>>,
    pub filter: Option<Filter>,
    spans: RefCell<HashMap<i64, Span>>, // by queue id: the ranges known to be in memory
    pub broker_id: String,
    pub slow_broker_id: String,
    pub topic_sys_flag: String,
    pub group_sys_flag: String,
}

/// A range of queue offsets, and the number of reads within it that will not wait for the disk.
struct Span {
    start: i64,
    stop: i64,
    reads: i64,
}

impl Span {
    fn covers(&self, offset: i64, count: i64) -> bool {
        self.reads > 0 && self.start <= offset && offset.saturating_add(count) <= self.stop
    }
}

/// The cached authorizations.
pub struct Authorizations {
    find: Py<PyAny>,
    known: HashMap<Vec<u8>, Authorization>,
}

impl Authorizations {
    pub fn new(find: Py<PyAny>) -> Self {
        Self { find, known: HashMap::new() }
    }

    /// Permissions to pull have changed: drop the cached authorizations.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    pub fn get(&self, key: &[u8]) -> Option<&Authorization> {
        self.known.get(key)
    }

    /// Build `key` from the values that the authorization depends on, and request it unless it is cached.
    pub fn find(
        &mut self,
        py: Python<'_>,
        errors: &Errors,
        key: &mut Vec<u8>,
        code: i64,
        flags: i64,
        fields: &Fields<'_>,
    ) -> Outcome<()> {
        let expression_type = fields.get(Name::ExpressionType);
        let is_sql = if expression_type.is_missing() {
            false
        } else {
            match &*expression_type.text().ok_or(Stop::Slow)? {
                b"SQL92" => true,
                b"TAG" | b"" => false,
                _ => return Err(Stop::Slow),
            }
        };
        let posted = flags & PULL_SUBSCRIPTION != 0;
        let (subscription, sub_version) = if posted {
            let value = fields.get(Name::Subscription);
            let text = if value.is_missing() { Cow::Borrowed(&b""[..]) } else { value.text().ok_or(Stop::Slow)? };
            if text.first() == Some(&SQL_PREFIX) {
                return Err(Stop::Slow);
            }
            (Some(if is_sql { Cow::Owned([&[SQL_PREFIX], &*text].concat()) } else { text }), 0)
        } else {
            let value = fields.get(Name::SubVersion);
            (None, if value.is_missing() { 0 } else { value.number().ok_or(Stop::Slow)? })
        };
        let group = fields.get(Name::ConsumerGroup).text().ok_or(Stop::Slow)?;
        let topic = fields.get(Name::Topic).text().ok_or(Stop::Slow)?;
        key.clear();
        for part in [&group, &topic, subscription.as_ref().unwrap_or(&Cow::Borrowed(&b""[..]))] {
            key.extend_from_slice(&(part.len() as u32).to_be_bytes());
            key.extend_from_slice(part);
        }
        key.extend_from_slice(&code.to_be_bytes());
        key.extend_from_slice(&sub_version.to_be_bytes());
        key.push(u8::from(posted));
        if self.known.contains_key(key) {
            return Ok(());
        }
        let text = |bytes: &Cow<'_, [u8]>| String::from_utf8(bytes.to_vec()).map_err(|_| Stop::Slow);
        let (group, topic) = (text(&group)?, text(&topic)?);
        let subscription = subscription.as_ref().map(text).transpose()?;
        let question = (code, group, topic, subscription, sub_version);
        let object = errors.check(py, self.find.bind(py).call1((question,)))?;
        if object.is_none() {
            return Err(Stop::Slow);
        }
        let Some(authorization) = errors.check(py, Authorization::load(object))? else { return Err(Stop::Slow) };
        if self.known.len() >= AUTHORIZATIONS_MAX {
            self.known.clear();
        }
        self.known.insert(key.clone(), authorization);
        Ok(())
    }
}

impl Authorization {
    /// Whether reading `count` messages there would wait for the disk: Warmer.is_cold, asked once for the reads that it covers.
    pub fn is_cold(
        &self,
        store: &Bound<'_, PyAny>,
        queue: &Bound<'_, PyAny>,
        queue_id: i64,
        offset: i64,
        count: i64,
    ) -> PyResult<bool> {
        let py = store.py();
        let mut spans = self.spans.borrow_mut();
        if let Some(span) = spans.get_mut(&queue_id).filter(|span| span.covers(offset, count)) {
            span.reads -= 1;
            return Ok(false);
        }
        spans.remove(&queue_id);
        let warmer = store.getattr(intern!(py, "warmer"))?;
        let span = warmer.call_method1(intern!(py, "take_warm_span"), (queue, offset, count))?;
        let Some((start, stop, reads)) = span.extract::<Option<(i64, i64, i64)>>()? else { return Ok(true) };
        if reads > 0 {
            spans.insert(queue_id, Span { start, stop, reads });
        }
        Ok(false)
    }

    /// None for a authorization whose filter has no program.
    fn load(object: Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let py = object.py();
        let number = |name: &Bound<'_, PyString>| object.getattr(name)?.extract::<i64>();
        let program = object.getattr(intern!(py, "program"))?;
        let filter = if program.is_none() { None } else { Filter::load(&program)? };
        if filter.is_none() && !object.getattr(intern!(py, "accept"))?.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            filter,
            spans: RefCell::default(),
            topic: object.getattr(intern!(py, "topic"))?.unbind(),
            queue_count: number(intern!(py, "queue_count"))?,
            tag_codes: object.getattr(intern!(py, "tag_codes"))?.extract::<Option<HashSet<i64>>>()?,
            broker_id: number(intern!(py, "broker_id"))?.to_string(),
            slow_broker_id: number(intern!(py, "slow_broker_id"))?.to_string(),
            topic_sys_flag: number(intern!(py, "topic_sys_flag"))?.to_string(),
            group_sys_flag: number(intern!(py, "group_sys_flag"))?.to_string(),
            object: object.unbind(),
        }))
    }
}
