//! The headers of one request: whether HTTP/2 allows them, and what a call keeps. aerobee/grpc/request_headers.py.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::hpack::Field;

const PSEUDO: [&[u8]; 4] = [b":method", b":scheme", b":authority", b":path"];
const FORBIDDEN: [&[u8]; 5] = [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

const AUTHORITY: usize = 2; // of PSEUDO

const SHARED_MAX: usize = 32;
const SHARED_BYTES_MAX: usize = 128;

/// What the core reads of a request's headers; the last value of each.
pub struct RequestHeaders<'a> {
    pub method: &'a [u8],
    pub path: &'a [u8],
    pub content_type: &'a [u8],
    pub timeout: Option<&'a [u8]>,
    pub encoding: Option<&'a [u8]>,
}

impl<'a> RequestHeaders<'a> {
    /// None for a malformed request.
    pub fn read(fields: &'a [Arc<Field>]) -> Option<Self> {
        let mut pseudo: [Option<&[u8]>; PSEUDO.len()] = [None; PSEUDO.len()];
        let mut found = Self { method: b"", path: b"", content_type: b"", timeout: None, encoding: None };
        let mut host: Option<&[u8]> = None;
        let mut has_regular = false;
        for field in fields {
            if !field.has_allowed_characters {
                return None;
            }
            let (name, value) = (field.name.as_slice(), strip(&field.value));
            if name[0] == b':' {
                let at = PSEUDO.iter().position(|known| *known == name)?;
                if has_regular || pseudo[at].replace(value).is_some() {
                    return None;
                }
                continue;
            }
            has_regular = true;
            match name {
                b"te" if !is_trailers(&field.value) => return None,
                b"content-type" => found.content_type = value,
                b"grpc-timeout" => found.timeout = Some(value),
                b"grpc-encoding" => found.encoding = Some(value),
                b"host" => {
                    if host.replace(value).is_some() {
                        return None;
                    }
                }
                _ if FORBIDDEN.contains(&name) => return None,
                _ => {}
            }
        }
        if let (Some(host), Some(authority)) = (host, pseudo[AUTHORITY])
            && host != authority
        {
            return None;
        }
        let [method, scheme, _, path] = pseudo.map(Option::unwrap_or_default);
        if method.is_empty() || scheme.is_empty() || path.is_empty() {
            return None;
        }
        (found.method, found.path) = (method, path);
        Some(found)
    }
}

/// Whether these are trailers of a request: no pseudo-headers among them (RFC 9113, 8.1).
pub fn are_trailers(fields: &[Arc<Field>]) -> bool {
    fields.iter().all(|field| {
        let name = field.name.as_slice();
        let is_refused = name.first() == Some(&b':') || FORBIDDEN.contains(&name) || name == b"te" && !is_trailers(&field.value);
        field.has_allowed_characters && !is_refused
    })
}

fn is_trailers(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"trailers")
}

/// Headers that no service reads: OF_TRANSPORT of the Python core.
fn is_of_transport(name: &[u8]) -> bool {
    matches!(
        name,
        b"content-type" | b"te" | b"user-agent" | b"accept-encoding" | b"grpc-timeout" | b"grpc-encoding" | b"grpc-accept-encoding"
    ) || name[0] == b':'
}

/// Texts that calls of one connection share, for thousands may wait: header names and paths.
#[derive(Default)]
pub struct SharedTexts {
    found: Vec<(Vec<u8>, Py<PyString>)>,
}

impl SharedTexts {
    pub fn get<'py>(&mut self, py: Python<'py>, data: &[u8]) -> Bound<'py, PyString> {
        if let Some((_, text)) = self.found.iter().find(|(known, _)| known == data) {
            return text.bind(py).clone();
        }
        let made = text(py, data);
        if self.found.len() < SHARED_MAX && data.len() <= SHARED_BYTES_MAX {
            self.found.push((data.to_vec(), made.clone().unbind()));
        }
        made
    }
}

/// What a call keeps of the headers of a request that was read.
pub fn metadata<'py>(py: Python<'py>, fields: &[Arc<Field>], names: &mut SharedTexts) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for field in fields.iter().filter(|field| !is_of_transport(&field.name)) {
        let value = field.text.get_or_init(|| text(py, strip(&field.value)).unbind());
        found.set_item(names.get(py, &field.name), value)?;
    }
    Ok(found)
}

/// Latin-1.
pub fn text<'py>(py: Python<'py>, data: &[u8]) -> Bound<'py, PyString> {
    match std::str::from_utf8(data) {
        Ok(ascii) if data.is_ascii() => PyString::new(py, ascii),
        _ => PyString::new(py, &data.iter().map(|&byte| char::from(byte)).collect::<String>()),
    }
}

/// Without spaces and tabs at both ends.
fn strip(mut data: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = data {
        data = rest;
    }
    data
}

/// Seconds of the header grpc-timeout; None: it is malformed, and aerobee/grpc/timeout.py says how.
pub fn seconds(text: &[u8]) -> Option<f64> {
    let (unit, digits) = text.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0u32, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    let factor = match unit {
        b'H' => 3600.0,
        b'M' => 60.0,
        b'S' => 1.0,
        b'm' => 1e-3,
        b'u' => 1e-6,
        b'n' => 1e-9,
        _ => return None,
    };
    Some(f64::from(number) * factor)
}
