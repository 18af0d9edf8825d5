//! In which order the values of a header's fields are signed: by their names, of equal names the last value.
//!
//! Peers of one kind send the same names in the same order, so that a few orders are remembered and most headers are not
//! sorted.

use crate::field::split_names;

/// Different names in a header; one with more is for the handlers, and nothing is signed in an order of ours.
pub const NAMES_MAX: usize = 64;
const REMEMBERED_MAX: usize = 8;
const REMEMBERED_NAME_BYTES_MAX: usize = 2048; // of a header whose order is worth remembering
pub const ACCESS_KEY: &str = "AccessKey";
const SIGNATURE: &str = "Signature";
const UNIQUE_KEY_QUERY: &str = "_UNIQUE_KEY_QUERY";
const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();

/// What names of fields say. Numbers are those of values.
pub struct FieldOrder {
    /// Empty where it is not worth remembering.
    names: Vec<u8>,
    /// What is signed, in its order.
    pub signed: Vec<u32>,
    pub access_key: Option<usize>,
    pub signature: Option<usize>,
    pub has_unique_key_query: bool,
    /// How many different names there are.
    pub name_count: usize,
    /// Whether a name is not UTF-8, or has what stands for bytes that are not.
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
        order.retain(|number| name_count <= NAMES_MAX && Some(*number as usize) != signature);
        order.shrink_to_fit();
        let is_strange = all.iter().any(|name| is_strange(name));
        let names = if names.len() > REMEMBERED_NAME_BYTES_MAX { Vec::new() } else { names.to_vec() };
        Self { names, signed: order, access_key, signature, has_unique_key_query, name_count, is_strange }
    }
}

/// The orders of the headers that came last.
#[derive(Default)]
pub struct FieldOrders {
    known: Vec<FieldOrder>,
    next: usize,
    /// The last one that is not worth remembering.
    other: Option<FieldOrder>,
}

impl FieldOrders {
    /// The order for such names, as `AllFields::names` has them.
    pub fn find(&mut self, names: &[u8]) -> &FieldOrder {
        if let Some(found) = self.known.iter().position(|order| order.names == names) {
            return &self.known[found];
        }
        let order = FieldOrder::new(names);
        if names.len() > REMEMBERED_NAME_BYTES_MAX {
            return self.other.insert(order);
        }
        if self.known.len() < REMEMBERED_MAX {
            self.known.push(order);
            return &self.known[self.known.len() - 1];
        }
        self.next = (self.next + 1) % REMEMBERED_MAX;
        self.known[self.next] = order;
        &self.known[self.next]
    }
}

/// Whether a text of a binary header is one that the handlers have to look at.
pub fn is_strange(text: &[u8]) -> bool {
    !text.is_ascii() && (std::str::from_utf8(text).is_err() || text.windows(REPLACEMENT.len()).any(|part| part == REPLACEMENT))
}
