//! The order in which a signature covers the values of a header's fields: sorted by name; of equal names, only the last
//! value.
//!
//! Peers of one kind send the same names in the same order, so a small cache of orders saves sorting most headers.

use crate::constants::GUARDED_FIELDS_MAX;
use crate::field::{Fields, Name, Value, split_names};

/// Maximum number of remembered orders.
const REMEMBERED_MAX: usize = 8;
const REMEMBERED_NAME_BYTES_MAX: usize = 2048; // of a header whose order is worth remembering
pub const ACCESS_KEY: &str = "AccessKey";
const SIGNATURE: &str = "Signature";
const UNIQUE_KEY_QUERY: &str = "_UNIQUE_KEY_QUERY";
const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();

/// Properties of field names. Numbers are those of values.
pub struct FieldOrder {
    /// None where they are too long to be remembered.
    names: Option<Vec<u8>>,
    /// The fields with a known name: name and number of its value.
    known: Vec<(Name, u32)>,
    /// The signed fields, in order.
    pub signed: Vec<u32>,
    pub access_key: Option<usize>,
    pub signature: Option<usize>,
    pub has_unique_key_query: bool,
    /// Number of distinct names.
    pub name_count: usize,
    /// Whether a name is not UTF-8, or contains the replacement for invalid bytes.
    pub is_strange: bool,
}

impl FieldOrder {
    fn new(names: &[u8]) -> Self {
        let all = split_names(names);
        let mut order: Vec<u32> = (0..all.len() as u32).collect();
        order.sort_unstable_by_key(|number| (all[*number as usize], u32::MAX - number));
        order.dedup_by_key(|number| all[*number as usize]); // keeps the first, which is the last that came
        let find = |name: &str| {
            let found = order.binary_search_by_key(&name.as_bytes(), |number| all[*number as usize]).ok()?;
            Some(order[found] as usize)
        };
        let (access_key, signature) = (find(ACCESS_KEY), find(SIGNATURE));
        let has_unique_key_query = find(UNIQUE_KEY_QUERY).is_some();
        let name_count = order.len();
        order.retain(|number| name_count <= GUARDED_FIELDS_MAX && Some(*number as usize) != signature);
        order.shrink_to_fit();
        let is_strange = all.iter().any(|name| is_strange(name));
        let known = order.iter().filter_map(|number| Some((Name::of(all[*number as usize])?, *number))).collect();
        let names = (names.len() <= REMEMBERED_NAME_BYTES_MAX).then(|| names.to_vec());
        Self { names, known, signed: order, access_key, signature, has_unique_key_query, name_count, is_strange }
    }

    /// The value of a name among all values.
    pub fn value<'a>(&self, values: &[Value<'a>], name: Name) -> Value<'a> {
        let found = self.known.iter().find(|(known, _)| *known == name);
        found.map_or(Value::Missing, |(_, number)| values[*number as usize])
    }

    /// Set the fields with a known name.
    pub fn put_known<'a>(&self, values: &[Value<'a>], fields: &mut Fields<'a>) {
        for (name, number) in &self.known {
            fields.set(*name, values[*number as usize]);
        }
    }
}

/// The orders of the headers that came last.
#[derive(Default)]
pub struct FieldOrders(Vec<FieldOrder>);

impl FieldOrders {
    /// Forget the oldest, if there are more than are worth remembering. Until then the number of an order is its own.
    pub fn trim(&mut self) {
        if self.0.len() > REMEMBERED_MAX {
            self.0.retain(|order| order.names.is_some());
            self.0.drain(..self.0.len().saturating_sub(REMEMBERED_MAX));
        }
    }

    pub fn get(&self, number: usize) -> &FieldOrder {
        &self.0[number]
    }

    /// The number of the order for such names, as `AllFields::names` has them.
    pub fn find(&mut self, names: &[u8]) -> usize {
        let found = self.0.iter().position(|order| order.names.as_deref() == Some(names));
        found.unwrap_or_else(|| {
            self.0.push(FieldOrder::new(names));
            self.0.len() - 1
        })
    }
}

/// Whether the handlers must decode a text of a binary header.
pub fn is_strange(text: &[u8]) -> bool {
    !text.is_ascii() && (std::str::from_utf8(text).is_err() || text.windows(REPLACEMENT.len()).any(|part| part == REPLACEMENT))
}
