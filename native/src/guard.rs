//! Access control of the fast path: aerobee/broker/fastpath/guard.py is the Python counterpart, aerobee/access/gate.py
//! the reference of both.
//!
//! A grant is looked up once for a host, an access key and the names that a request needs permission for, and cached
//! until users or permissions change; its permissions are looked up after the first valid signature. Each frame's
//! signature is verified: HMAC-SHA1 over the values of all its fields and its body. Those of some frames may be
//! verified before the first of them is served (look_ahead.rs), with cached grants; the verdicts are void as soon as
//! grants are dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::constants::{GRANTS_MAX, GUARDED_FIELDS_MAX, GUARDED_TEXT_CHARS_MAX};
use crate::field::{AllFields, Fields, Kept, Name, Value};
use crate::field_order::{ACCESS_KEY, FieldOrder, FieldOrders, is_strange};
use crate::json_text::unescape;
use crate::outcome::{Errors, Outcome, Stop};
use crate::sha1_lanes::LANES;
use crate::signature::{Contents, Key, digest_of};
use crate::text::append;

const CONTENT_BYTES_KEPT: usize = 1 << 16;
const AHEAD_FRAME_BYTES_MAX: usize = 16 * 1024; // a longer frame is verified when it is served

/// Required proof of a peer.
#[derive(Clone)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// Signatures of a user who may connect from this host.
    Host(Arc<str>),
    /// Undetermined: the peer's host is unknown.
    Unknown,
}

impl Asked {
    /// As Backend.burst's `host` says it.
    pub fn of(host: Option<&str>) -> Self {
        match host {
            None => Self::Unknown,
            Some("") => Self::Nothing,
            Some(host) => Self::Host(host.into()),
        }
    }
}

/// One parsed frame, as the guard needs it. Its fields are stored in a buffer shared with other frames.
pub struct Shown<'a> {
    pub code: i64,
    pub flag: i64,
    pub opaque: i64,
    pub is_binary: bool,
    pub kept: Kept,
    pub body: &'a [u8],
    pub frame: &'a [u8],
    /// Found by verify().
    pub order: Option<usize>,
    pub verdict: Option<Verdict>,
}

/// Verdict on a signature, with the generation of the grants.
#[derive(Clone, Copy)]
pub struct Verdict {
    is_signed: bool,
    generation: u64,
}

/// The fields that name what requests of a code need permission for.
struct Guarded {
    code: i64,
    names: Vec<(Name, String)>,
}

pub struct Guard {
    find_grant: Py<PyAny>,
    guarded: Vec<Guarded>,
    grants: Grants,
    orders: FieldOrders,
    contents: Contents,
}

impl Guard {
    /// `guarded` are the names of the fields that name what a request needs permission for, by code.
    pub fn new(find_grant: Py<PyAny>, guarded: Vec<(i64, Vec<String>)>, forgets: Arc<AtomicBool>) -> PyResult<Self> {
        let mut known = Vec::new();
        for (code, names) in guarded {
            let names = names.into_iter().map(|name| Name::of(name.as_bytes()).map(|known| (known, name)));
            let names = names.collect::<Option<_>>().ok_or_else(|| PyValueError::new_err("a field that is not known"))?;
            known.push(Guarded { code, names });
        }
        let grants = Grants { granted: HashMap::new(), last: None, wanted: Vec::new(), generation: 0, forgets };
        Ok(Self { find_grant, guarded: known, grants, orders: FieldOrders::default(), contents: Contents::default() })
    }

    /// Verify the signatures of at most `LANES` frames of one peer with the grants that are known. Calls no Python code.
    pub fn verify<'a>(&mut self, asked: &Asked, frames: &mut [Shown<'a>], all: &AllFields<'a>) {
        let Asked::Host(host) = asked else { return };
        self.grants.forget_if_told();
        self.orders.trim();
        self.contents.clear(CONTENT_BYTES_KEPT);
        let generation = self.grants.generation;
        let mut signed = [0; LANES];
        for (number, shown) in frames.iter_mut().enumerate() {
            if shown.frame.len() > AHEAD_FRAME_BYTES_MAX {
                continue;
            }
            let order = self.orders.find(all.names(&shown.kept));
            shown.order = Some(order);
            let (order, values) = (self.orders.get(order), all.values(&shown.kept));
            let Ok(guarded) = ordinary(&self.guarded, order, shown, values) else { continue };
            let Ok(Some(key)) = self.grants.find(shown.code, host, named(values, order, guarded)) else { continue };
            let is_signed = match key {
                None => true,
                Some(key) => match put_content(&mut self.contents, key, shown, values, order) {
                    Ok(()) => {
                        signed[self.contents.count() - 1] = number;
                        continue;
                    }
                    Err(_) => false,
                },
            };
            shown.verdict = Some(Verdict { is_signed, generation });
        }
        for (number, is_signed) in signed.into_iter().zip(self.contents.verify()) {
            frames[number].verdict = Some(Verdict { is_signed, generation });
        }
    }

    /// Let a frame through, or leave it to the handlers. `called` is set when Python was called. `fields` become the frame's.
    #[allow(clippy::too_many_arguments)]
    pub fn admit<'a>(
        &mut self,
        py: Python<'_>,
        errors: &Errors,
        asked: &Asked,
        shown: &Shown<'a>,
        all: &AllFields<'a>,
        called: &mut bool,
        fields: &mut Fields<'a>,
    ) -> Outcome<()> {
        let Asked::Host(host) = asked else { return Err(Stop::Slow) };
        self.grants.forget_if_told();
        let order = shown.order.unwrap_or_else(|| self.orders.find(all.names(&shown.kept)));
        let (order, values) = (self.orders.get(order), all.values(&shown.kept));
        order.put_known(values, fields);
        if let Some(verdict) = shown.verdict && verdict.generation == self.grants.generation {
            return if verdict.is_signed { Ok(()) } else { Err(Stop::Slow) };
        }
        let guarded = ordinary(&self.guarded, order, shown, values)?;
        if let Some(key) = self.grants.find(shown.code, host, named(values, order, guarded))? {
            return check(&mut self.contents, key, shown, values, order);
        }
        *called = true;
        let (grant, key) = ask(&self.find_grant, py, errors, guarded, host, named(values, order, guarded))?;
        check(&mut self.contents, key, shown, values, order)?;
        let allows = errors.check(py, grant.call_method0(intern!(py, "allows")))?;
        if !errors.check(py, allows.is_truthy())? {
            return Err(Stop::Slow);
        }
        self.grants.remember(key);
        Ok(())
    }
}

/// Cached grants. A grant is the key that must sign a frame, None when no signature is required.
struct Grants {
    granted: HashMap<Vec<u8>, Option<Key>>,
    /// Cache key and grant of the previous look-up. Most frames need the same grant as the previous frame, and so skip
    /// the map.
    last: Option<(Vec<u8>, Option<Key>)>,
    /// Cache key of the present look-up: the code, and each text with a length prefix.
    wanted: Vec<u8>,
    /// Changes each time the cached grants are dropped.
    generation: u64,
    forgets: Arc<AtomicBool>,
}

impl Grants {
    fn forget_if_told(&mut self) {
        if self.forgets.load(Ordering::Relaxed) && self.forgets.swap(false, Ordering::AcqRel) {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.granted.clear();
        self.last = None;
        self.generation += 1;
    }

    /// Find a cached grant. A frame with a value that is not text, or is longer than any name, is left to the handlers.
    fn find<'v>(
        &mut self,
        code: i64,
        host: &str,
        named: impl Iterator<Item = Value<'v>> + Clone,
    ) -> Outcome<Option<Option<Key>>> {
        if let Some((last, key)) = &self.last && is_same(last, code, host, named.clone()) {
            return Ok(Some(*key));
        }
        self.wanted.clear();
        self.wanted.extend_from_slice(&code.to_le_bytes());
        put(&mut self.wanted, host.as_bytes());
        for value in named {
            put_value(&mut self.wanted, value)?;
        }
        let Some(key) = self.granted.get(self.wanted.as_slice()).copied() else { return Ok(None) };
        self.last = Some((self.wanted.clone(), key));
        Ok(Some(key))
    }

    /// Cache the grant of the last look-up.
    fn remember(&mut self, key: Option<Key>) {
        if self.granted.len() >= GRANTS_MAX {
            self.forget();
        }
        self.granted.insert(self.wanted.clone(), key);
        self.last = Some((self.wanted.clone(), key));
    }
}

/// Whether the cache key `last` is that of these values. `last` has no further values, because each code has a fixed
/// number of them.
fn is_same<'v>(mut last: &[u8], code: i64, host: &str, mut named: impl Iterator<Item = Value<'v>>) -> bool {
    let mut takes = |bytes: &[u8]| last.strip_prefix(bytes).map(|rest| last = rest).is_some();
    if !takes(&code.to_le_bytes()) {
        return false;
    }
    let mut takes_text = |text: &[u8]| takes(&(text.len() as u32).to_le_bytes()) && takes(text);
    takes_text(host.as_bytes())
        && named.all(|value| match value {
            Value::Missing => takes_text(b""),
            Value::Text { raw, escaped: false } => takes_text(raw),
            _ => false, // put_value() decides about other values
        })
}

fn put(wanted: &mut Vec<u8>, text: &[u8]) {
    wanted.extend_from_slice(&(text.len() as u32).to_le_bytes());
    wanted.extend_from_slice(text);
}

/// Append a value to the cache key; a missing field counts as empty.
fn put_value(wanted: &mut Vec<u8>, value: Value<'_>) -> Outcome<()> {
    if value.is_missing() {
        put(wanted, b"");
        return Ok(());
    }
    let text = value.text().ok_or(Stop::Slow)?;
    if text.len() > GUARDED_TEXT_CHARS_MAX && text.iter().filter(|byte| **byte & 0xC0 != 0x80).count() > GUARDED_TEXT_CHARS_MAX {
        return Err(Stop::Slow);
    }
    put(wanted, &text);
    Ok(())
}

/// The names that a frame needs permission for; Err leaves the frame to the handlers.
fn ordinary<'g>(guarded: &'g [Guarded], order: &FieldOrder, shown: &Shown<'_>, values: &[Value<'_>]) -> Outcome<&'g Guarded> {
    let guarded = guarded.iter().find(|guarded| guarded.code == shown.code).ok_or(Stop::Slow)?;
    if order.name_count > GUARDED_FIELDS_MAX || order.has_unique_key_query {
        return Err(Stop::Slow);
    }
    let is_strange = |value: &Value<'_>| value.raw().is_none_or(is_strange);
    if shown.is_binary && (order.is_strange || values.iter().any(is_strange)) {
        return Err(Stop::Slow);
    }
    Ok(guarded)
}

/// Cache key of a grant, in addition to code and host: the access key and the names that need permission.
fn named<'v>(values: &[Value<'v>], order: &FieldOrder, guarded: &Guarded) -> impl Iterator<Item = Value<'v>> + Clone {
    let access_key = order.access_key.map_or(Value::Missing, |number| values[number]);
    std::iter::once(access_key).chain(guarded.names.iter().map(|(name, _)| order.value(values, *name)))
}

/// Collect the content that the frame's signature must cover.
fn put_content(contents: &mut Contents, key: Key, shown: &Shown<'_>, values: &[Value<'_>], order: &FieldOrder) -> Outcome<()> {
    let given = order.signature.and_then(|number| values[number].text()).ok_or(Stop::Slow)?;
    let given = digest_of(&given).ok_or(Stop::Slow)?;
    let out = contents.begin(shown.frame.len());
    for number in &order.signed {
        match values[*number as usize] {
            Value::Text { raw, escaped: false } => append(out, raw),
            Value::Text { raw, escaped: true } => unescape(raw, out),
            _ => return Err(Stop::Slow),
        }
    }
    contents.end(key, given, shown.body);
    Ok(())
}

/// Verify the frame's signature with this key; None requires no signature.
fn check(contents: &mut Contents, key: Option<Key>, shown: &Shown<'_>, values: &[Value<'_>], order: &FieldOrder) -> Outcome<()> {
    let Some(key) = key else { return Ok(()) };
    contents.clear(CONTENT_BYTES_KEPT);
    put_content(contents, key, shown, values, order)?;
    if contents.verify().all(|is_signed| is_signed) { Ok(()) } else { Err(Stop::Slow) }
}

/// The user of a request, and the key that has to have signed it.
fn ask<'py, 'v>(
    find_grant: &Py<PyAny>,
    py: Python<'py>,
    errors: &Errors,
    guarded: &Guarded,
    host: &str,
    named: impl Iterator<Item = Value<'v>>,
) -> Outcome<(Bound<'py, PyAny>, Option<Key>)> {
    let asked = PyDict::new(py);
    let names = std::iter::once(ACCESS_KEY).chain(guarded.names.iter().map(|(_, name)| name.as_str()));
    for (name, value) in names.zip(named) {
        let text = value.text().unwrap_or_default();
        let Ok(text) = std::str::from_utf8(&text) else { return Err(Stop::Slow) };
        errors.check(py, asked.set_item(name, text))?;
    }
    let grant = errors.check(py, find_grant.bind(py).call1((guarded.code, asked, host)))?;
    if grant.is_none() {
        return Err(Stop::Slow);
    }
    let secret: Option<String> =
        errors.check(py, grant.getattr(intern!(py, "signing_key")).and_then(|key| key.extract()))?;
    Ok((grant, secret.map(|secret| Key::new(secret.as_bytes()))))
}
