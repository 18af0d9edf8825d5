//! The native twin of Aerobee's lane. aerobee/broker/lane/core.py and lane/pull.py say what it does; the same tests
//! and a differential fuzz (tests/fuzz/lane_differential.py) hold both. And of the client's codec: client*.rs, the twin of
//! aerobee/client/codec.py's parts, held by tests/fuzz/client_differential.py.
//!
//! The lane does no IO and owns no memory: bytes, the time and writable buffers are lent to it for one call. Memory is touched
//! through `window.rs` alone. `sockets.rs` joins the lane to the connections of a broker. Unsafe code is in `window.rs`, and
//! where `sockets.rs` takes over a descriptor.

#![deny(unsafe_code)]

mod binary_header;
mod client;
mod client_record;
mod client_reply;
mod delayed;
mod deliver;
mod field;
mod index;
mod json_header;
mod lane;
mod pull;
mod send;
#[cfg(target_os = "linux")]
mod sockets;
mod text;
mod topic;
mod transaction;
mod window;

use pyo3::prelude::*;

/// The same number as aerobee.broker.lane.core.LANE_VERSION: of the seam and of what a burst answers and writes.
const LANE_VERSION: u32 = 6;

/// The same number as aerobee.client.codec.CODEC_VERSION: of what the client's parts take and return.
const CODEC_VERSION: u32 = 1;

#[pymodule]
fn aerobee_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LANE_VERSION", LANE_VERSION)?;
    module.add("CODEC_VERSION", CODEC_VERSION)?;
    module.add_class::<client::SendTemplate>()?;
    module.add_class::<client::UniqueIds>()?;
    module.add_class::<client_reply::SendReplies>()?;
    module.add_function(wrap_pyfunction!(client_record::take_records, module)?)?;
    module.add_class::<pull::RecordFilter>()?;
    #[cfg(target_os = "linux")]
    module.add_class::<sockets::Sockets>()?;
    module.add_class::<lane::LaneCore>()
}
