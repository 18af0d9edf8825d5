//! Who may have a frame served: aerobee/broker/fastpath/guard.py is the definition.
//!
//! A grant is asked for once for a host, an access key and the names that a request needs permission for, and kept until users
//! or permissions change; what it allows is asked behind the first right signature. Each frame's signature is verified:
//! HMAC-SHA1 over the values of all its fields and its body. Of a secret only the state of the hash is kept that every
//! signature with it begins with.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hmac::{Hmac, KeyInit, Mac};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sha1::Sha1;

use crate::field::{Name, Value};
use crate::json_text::unescape;
use crate::outcome::{Errors, Outcome, Stop};

const FIELDS_MAX: usize = 64;
const REMEMBERED_MAX: usize = 10_000;
const TEXT_CHARS_MAX: usize = 512;
const ACCESS_KEY: &[u8] = b"AccessKey";
const SIGNATURE: &[u8] = b"Signature";
const UNIQUE_KEY_QUERY: &[u8] = b"_UNIQUE_KEY_QUERY";
const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();
const DIGEST_BYTES: usize = 20;
const SIGNATURE_CHARS: usize = 28;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What is asked of a peer.
#[derive(Clone)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// Signatures, of whom comes from there.
    Host(Arc<str>),
    /// Nobody knows who it is.
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

/// All fields of a frame, by name.
pub type Sorted<'a> = [(Cow<'a, [u8]>, Value<'a>)];

/// One frame, as the guard looks at it.
pub struct Shown<'a> {
    pub code: i64,
    pub fields: &'a Sorted<'a>,
    pub body: &'a [u8],
    pub is_binary: bool,
}

/// What a grant says: None where no signature is asked for.
type Key = Option<Hmac<Sha1>>;

pub struct Guard {
    find_grant: Py<PyAny>,
    guarded: Vec<(i64, Vec<(Name, String)>)>,
    granted: HashMap<Vec<u8>, Key>,
    /// The last one asked for, for most frames are like the one before.
    last: Option<(Vec<u8>, Key)>,
    forgets: Arc<AtomicBool>,
    wanted: Vec<u8>,
    content: Vec<u8>,
}

impl Guard {
    /// `guarded` are the names of the fields that name what a request needs permission for, by code.
    pub fn new(find_grant: Py<PyAny>, guarded: Vec<(i64, Vec<String>)>, forgets: Arc<AtomicBool>) -> PyResult<Self> {
        let mut known = Vec::new();
        for (code, names) in guarded {
            let names = names.into_iter().map(|name| Name::of(name.as_bytes()).map(|known| (known, name)));
            let names = names.collect::<Option<_>>().ok_or_else(|| PyValueError::new_err("a field that is not known"))?;
            known.push((code, names));
        }
        Ok(Self {
            find_grant,
            guarded: known,
            granted: HashMap::new(),
            last: None,
            forgets,
            wanted: Vec::new(),
            content: Vec::new(),
        })
    }

    /// Let a frame through, or leave it to the handlers. `called` is set when Python was asked.
    pub fn admit(
        &mut self,
        py: Python<'_>,
        errors: &Errors,
        asked: &Asked,
        shown: &Shown<'_>,
        called: &mut bool,
    ) -> Outcome<()> {
        let host = match asked {
            Asked::Nothing => return Ok(()),
            Asked::Unknown => return Err(Stop::Slow),
            Asked::Host(host) => host,
        };
        let index = self.guarded.iter().position(|(code, _)| *code == shown.code).ok_or(Stop::Slow)?;
        if shown.fields.len() > FIELDS_MAX || find(shown.fields, UNIQUE_KEY_QUERY).is_some() {
            return Err(Stop::Slow);
        }
        if shown.is_binary && shown.fields.iter().any(|(name, value)| is_strange(name) || value.raw().is_none_or(is_strange)) {
            return Err(Stop::Slow);
        }
        if self.forgets.load(Ordering::Relaxed) && self.forgets.swap(false, Ordering::AcqRel) {
            self.granted.clear();
            self.last = None;
        }
        // What a grant is known by: the code, and each text with its length in front.
        let names = &self.guarded[index].1;
        self.wanted.clear();
        self.wanted.extend_from_slice(&shown.code.to_le_bytes());
        put(&mut self.wanted, host.as_bytes());
        put_field(&mut self.wanted, shown.fields, ACCESS_KEY)?;
        for (_, name) in names {
            put_field(&mut self.wanted, shown.fields, name.as_bytes())?;
        }
        match self.last.take() {
            Some((wanted, key)) if wanted == self.wanted => {
                let is_signed = self.is_signed(key.as_ref(), shown);
                self.last = Some((wanted, key)); // as it was
                return is_signed;
            }
            _ => {}
        }
        if let Some(key) = self.granted.get(self.wanted.as_slice()).cloned() {
            self.is_signed(key.as_ref(), shown)?;
            self.last = Some((self.wanted.clone(), key));
            return Ok(());
        }
        *called = true;
        let (grant, key) = self.ask(py, errors, index, host, shown)?;
        self.is_signed(key.as_ref(), shown)?;
        let allows = errors.check(py, grant.call_method0(intern!(py, "allows")))?;
        if !errors.check(py, allows.is_truthy())? {
            return Err(Stop::Slow);
        }
        if self.granted.len() >= REMEMBERED_MAX {
            self.granted.clear();
        }
        self.granted.insert(self.wanted.clone(), key.clone());
        self.last = Some((self.wanted.clone(), key));
        Ok(())
    }

    /// Whether the frame is signed with this key, if with any.
    fn is_signed(&mut self, key: Option<&Hmac<Sha1>>, shown: &Shown<'_>) -> Outcome<()> {
        let Some(key) = key else { return Ok(()) };
        let given = find(shown.fields, SIGNATURE).and_then(Value::text).ok_or(Stop::Slow)?;
        self.content.clear();
        for (name, value) in shown.fields {
            if **name != *SIGNATURE {
                match *value {
                    Value::Text { raw, escaped: false } => self.content.extend_from_slice(raw),
                    Value::Text { raw, escaped: true } => unescape(raw, &mut self.content),
                    _ => return Err(Stop::Slow),
                }
            }
        }
        let mut mac = key.clone();
        mac.update(&self.content);
        mac.update(shown.body);
        let expected = base64(&mac.finalize().into_bytes().into());
        if is_equal(&given, &expected) { Ok(()) } else { Err(Stop::Slow) }
    }

    /// Who asks, and the key that has to have signed it.
    fn ask<'py>(
        &self,
        py: Python<'py>,
        errors: &Errors,
        index: usize,
        host: &str,
        shown: &Shown<'_>,
    ) -> Outcome<(Bound<'py, PyAny>, Key)> {
        let (code, names) = &self.guarded[index];
        let asked = PyDict::new(py);
        for name in std::iter::once(ACCESS_KEY).chain(names.iter().map(|(_, name)| name.as_bytes())) {
            let value = find(shown.fields, name).and_then(Value::text).unwrap_or_default();
            let texts = (std::str::from_utf8(name), std::str::from_utf8(&value));
            let (Ok(name), Ok(value)) = texts else { return Err(Stop::Slow) };
            errors.check(py, asked.set_item(name, value))?;
        }
        let grant = errors.check(py, self.find_grant.bind(py).call1((*code, asked, host)))?;
        if grant.is_none() {
            return Err(Stop::Slow);
        }
        let secret: Option<String> =
            errors.check(py, grant.getattr(intern!(py, "signing_key")).and_then(|key| key.extract()))?;
        let key = match secret {
            None => None,
            Some(secret) => Some(Hmac::<Sha1>::new_from_slice(secret.as_bytes()).map_err(|_| Stop::Slow)?),
        };
        Ok((grant, key))
    }
}

fn find<'a>(fields: &'a Sorted<'a>, wanted: &[u8]) -> Option<&'a Value<'a>> {
    let at = fields.binary_search_by(|(name, _)| (**name).cmp(wanted)).ok()?;
    Some(&fields[at].1)
}

fn is_strange(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_err() || text.windows(REPLACEMENT.len()).any(|part| part == REPLACEMENT)
}

fn put(wanted: &mut Vec<u8>, text: &[u8]) {
    wanted.extend_from_slice(&(text.len() as u32).to_le_bytes());
    wanted.extend_from_slice(text);
}

/// A field that is missing counts as empty; one that is no text, or longer than any name, is for the handlers.
fn put_field(wanted: &mut Vec<u8>, fields: &Sorted<'_>, name: &[u8]) -> Outcome<()> {
    let Some(value) = find(fields, name) else {
        put(wanted, b"");
        return Ok(());
    };
    let text = value.text().ok_or(Stop::Slow)?;
    if text.len() > TEXT_CHARS_MAX && text.iter().filter(|byte| **byte & 0xC0 != 0x80).count() > TEXT_CHARS_MAX {
        return Err(Stop::Slow);
    }
    put(wanted, &text);
    Ok(())
}

fn base64(digest: &[u8; DIGEST_BYTES]) -> [u8; SIGNATURE_CHARS] {
    let mut out = [b'='; SIGNATURE_CHARS];
    for (number, triple) in digest.chunks(3).enumerate() {
        let [first, second, third] = [triple[0], *triple.get(1).unwrap_or(&0), *triple.get(2).unwrap_or(&0)];
        let bits = u32::from_be_bytes([0, first, second, third]);
        for digit in 0..=triple.len() {
            out[number * 4 + digit] = BASE64[(bits >> (18 - 6 * digit)) as usize & 63];
        }
    }
    out
}

/// Takes as long for texts that differ in their first byte as for equal ones.
fn is_equal(given: &[u8], expected: &[u8; SIGNATURE_CHARS]) -> bool {
    given.len() == expected.len()
        && std::hint::black_box(given.iter().zip(expected).fold(0, |all, (left, right)| all | (left ^ right))) == 0
}
