//! Numbers and names that the native module repeats from the Python definitions: of records, requests and bounds that both obey.
//! The module exports them, and a test compares each (tests/unit/test_one_definition.py).

use pyo3::prelude::*;
use pyo3::types::PyDict;

macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*

        /// Name -> value of each.
        pub fn exported(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
            let found = PyDict::new(py);
            $(found.set_item(stringify!($name), $name)?;)*
            Ok(found)
        }
    };
}

constants! {
    // A record: its head with two IPv4 hosts, and its sysFlag.
    MAGIC_V1: u32 = 0xDAA3_20A7;
    MAGIC_V2: u32 = 0xDAA3_20AB; // two bytes for the topic's length
    BORN_HOST_V6: i64 = 0x10;
    STORE_HOST_V6: i64 = 0x20;
    NEED_UNWRAP: i64 = 0x40;
    INNER_BATCH: i64 = 0x80;
    TRANSACTION_MASK: i64 = 0xC;
    TRANSACTION_PREPARED: i64 = 0x4;
    TRANSACTION_COMMIT: i64 = 0x8;
    TRANSACTION_ROLLBACK: i64 = 0xC;
    MAGIC_AT: usize = 4;
    BODY_CRC_AT: usize = 8;
    QUEUE_ID_AT: usize = 12;
    FLAG_AT: usize = 16;
    QUEUE_OFFSET_AT: usize = 20; // its physical offset follows
    PHYSICAL_OFFSET_AT: usize = 28;
    SYS_FLAG_AT: usize = 36;
    BORN_TIMESTAMP_AT: usize = 40;
    STORE_TIMESTAMP_AT: usize = 56;
    RECONSUME_TIMES_AT: usize = 72;
    BODY_SIZE_AT: usize = 84;
    HEAD_BYTES: usize = 88; // up to the body
    RECORD_BYTES_MIN: usize = HEAD_BYTES + 1 + 2;
    PROPERTIES_BYTES_MAX: usize = 32_767;
    BATCH_ENTRY_HEAD_BYTES: usize = 20;
    // A queue entry.
    QUEUE_ENTRY_BYTES: i64 = 20;
    QUEUE_OFFSET_MAX: i64 = 1 << 56;
    FILLER_SIZE: i32 = i32::MAX;
    // Topics.
    RETRY_PREFIX: &[u8] = b"%RETRY%";
    DLQ_PREFIX: &[u8] = b"%DLQ%";
    TOPIC_BYTES_MAX: usize = 127;
    LMQ_PREFIX: &[u8] = b"%LMQ%";
    SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
    HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";
    // Requests.
    SEND_MESSAGE: i64 = 10;
    SEND_MESSAGE_V2: i64 = 310;
    SEND_BATCH_MESSAGE: i64 = 320;
    PULL_MESSAGE: i64 = 11;
    LITE_PULL_MESSAGE: i64 = 361;
    END_TRANSACTION: i64 = 37;
    SEND_BACK: i64 = 36; // CONSUMER_SEND_MSG_BACK
    SEND_BACK_EXTRAS: [&str; 4] = ["delayMillis", "lastError", "deliveryTries", "deadLetterReason"];
    SEND_BACK_SPECIAL: [&str; 4] = ["INNER_", "TIMER_", "TRAN_MSG", "__LITE_TOPIC"];
    SEND_BACK_LEVEL_MAX: i64 = 999_999_999;
    SEND_BACK_PAIRS_MAX: usize = 128;
    FIRST_RETRY_LEVEL: i64 = 3;
    SEND_BACK_RECORD_BYTES_MAX: usize = 16_384;
    VERSION_WITH_MAX_RECONSUME: i64 = 121;
    FLAG_ONEWAY: i64 = 2;
    ACK_LEVELS: [&str; 4] = ["stored", "flushed", "replicated", "flushed+replicated"];
    REPLY_VERSION: u16 = 513;
    FRAME_BYTES_MAX: usize = 16 << 20;
    PULL_COMMIT_OFFSET: i64 = 1;
    PULL_SUSPEND: i64 = 2;
    PULL_SUBSCRIPTION: i64 = 4;
    PULL_COUNT_MAX: i64 = 1024;
    HOLD_MS_MAX: i64 = 300_000;
    RESULT_BYTES_MAX: i64 = 128 << 20;
    ELIGIBLE_SYS_FLAG: i64 = 0x1 | 0x2 | 0x700; // compressed, several tags, kind of compression
    REPLY_BYTES_MAX: usize = 1 << 20;
    FAST_CODES: [i64; 7] =
        [SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, PULL_MESSAGE, LITE_PULL_MESSAGE, END_TRANSACTION, SEND_BACK];
    // Bounds of frames left to the handlers (aerobee/broker/fastpath/exclusions.py).
    HEADER_BYTES_MAX: usize = 256 * 1024;
    NUMBER_CHARS_MAX: usize = 20;
    LEVEL_MAX: i64 = 128;
    DELAY_DIGITS_MAX: usize = 18;
    PRIORITY_CHARS_MAX: usize = 9;
    LMQS_MAX: usize = 64;
    BATCH_ENTRIES_MAX: usize = 8_192;
    BATCH_HASHES_MAX: usize = 32_768;
    BATCH_PROPERTIES: [&str; 1] = ["DELAY"];
    BATCH_MESSAGE_PROPERTIES: [&str; 1] = ["INNER_MULTI_QUEUE_OFFSET"];
    GUARDED_FIELDS_MAX: usize = 64;
    GUARDED_TEXT_CHARS_MAX: usize = 512;
    // Bounds of the backends' caches and reads.
    GRANTS_MAX: usize = 10_000;
    AUTHORIZATIONS_MAX: usize = 4096;
    SQL_PREFIX: u8 = 0;
    NEAR_ENTRIES: i64 = 1024;
    SCATTERED_COUNT_MAX: i64 = 32;
    RUN_BYTES_MAX: i64 = 2 << 20;
    DELIVERY_BYTES_MAX: usize = 1 << 20;
    BLANK_BYTES: i64 = 8;
    CK_LEAD_MS: i64 = 1_000;
    POP_PRECISION_MS: i64 = 1_000;
    // SendMessage of gRPC (aerobee/broker/grpc).
    GRPC_OK: u64 = 20_000;
    GRPC_PROPERTIES_BYTES_MAX: usize = 16_384;
    GRPC_SECONDS_MAX: i64 = 253_402_300_799;
    GRPC_CLIENT_ID_CHARS_MAX: usize = 255;
    GRPC_BORN_HOST: &str = "__BORNHOST";
    GRPC_BORN_TIMESTAMP: &str = "BORN_TIMESTAMP";
    GRPC_TRACE_CONTEXT: &str = "TRACE_CONTEXT";
    SIZE_ENDS: [usize; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
}
