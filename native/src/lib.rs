//! The native backend of Aerobee's fast path. aerobee/broker/fastpath/ is its specification; the same tests and a
//! differential fuzz (tests/fuzz/fastpath_differential.py) check both. And of the client's codec: client*.rs, the
//! native form of aerobee/client/session/codec.py's parts, held by tests/fuzz/client_differential.py.
//!
//! Files only use those that stand above them in this list, which a test reads (tests/unit/test_native_floors.py). The fast
//! path does no IO and owns no memory: bytes, the time and writable buffers are lent to it for one call. Memory is touched
//! through `window.rs` alone. `sockets.rs` joins it to the connections of a broker. Unsafe code is in `window.rs`, where
//! `sockets.rs` takes over a descriptor, and where `sha1_lanes.rs` uses instructions that not each processor has.

#![deny(unsafe_code)]

// Bytes, texts and headers.
mod constants;
mod window;
mod text;
mod json_text;
mod protobuf;
mod field;
mod json_header;
mod binary_header;
mod field_order;
mod sha1_lanes;
mod signature;

// The store.
mod outcome;
mod guard;
mod look_ahead;
mod record;
mod topic;
mod index;
mod appender;
mod raw_appender;
mod segment;
mod filter;
mod reader;

// The fast path: what the frame handlers share, the handlers, and their caller.
mod handed_out;
mod latency;
mod requests;
mod results;
mod shared;
mod send;
mod grpc_send;
mod batch;
mod authorization;
mod pull;
mod send_back;
mod delayed;
mod transaction;
mod options;
mod delivery;
mod pop_plan;
mod pop_records;
mod backend;
#[cfg(target_os = "linux")]
mod sockets;

// The client's codec.
mod client;
mod client_record;
mod client_reply;

// gRPC's connections.
mod huffman;
mod hpack;
mod http2_limits;
mod http2_frame;
mod grpc_message;
mod request_headers;
mod http2_call;
mod http2_settings;
mod http2_names;
mod http2_stream;
mod http2_core;
mod http2_receiving;
mod http2_connection;

// Spark's source and sink.
mod arrow_rows;
mod batch_entries;

use pyo3::prelude::*;

/// The same number as aerobee.broker.fastpath.seam.FAST_PATH_VERSION: of the seam and of what a burst answers and writes.
const FAST_PATH_VERSION: u32 = 32;

/// The same number as aerobee.client.session.codec.CODEC_VERSION: of what the client's parts take and return.
const CODEC_VERSION: u32 = 2;

#[pymodule]
fn aerobee_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("FAST_PATH_VERSION", FAST_PATH_VERSION)?;
    module.add("CODEC_VERSION", CODEC_VERSION)?;
    module.add("CONSTANTS", constants::exported(module.py())?)?;
    module.add_class::<client::SendTemplate>()?;
    module.add_class::<client::UniqueIds>()?;
    module.add_class::<client_reply::SendReplies>()?;
    module.add_function(wrap_pyfunction!(client_record::take_records, module)?)?;
    module.add_class::<http2_call::Call>()?;
    module.add_class::<http2_connection::Http2Connection>()?;
    module.add_class::<http2_connection::Http2Burst>()?;
    module.add_class::<arrow_rows::ArrowRows>()?;
    module.add_class::<batch_entries::BatchEntries>()?;
    module.add_class::<filter::RecordFilter>()?;
    module.add_class::<results::BurstResult>()?;
    module.add_class::<results::PullResult>()?;
    module.add_class::<results::DeliveryResult>()?;
    #[cfg(target_os = "linux")]
    {
        module.add_class::<results::SocketTurns>()?;
        module.add_class::<sockets::Sockets>()?;
    }
    module.add_class::<delivery::DeliveryBackend>()?;
    module.add_class::<pop_records::PopRecords>()?;
    module.add_class::<pop_plan::PopPlan>()?;
    module.add_class::<raw_appender::RawAppender>()?;
    module.add_class::<backend::Backend>()
}
