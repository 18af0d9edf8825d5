//! Bounds of one HTTP/2 connection, read once from aerobee/grpc/limits.py's Http2Limits, and the token buckets of its rates.

use pyo3::prelude::*;

#[derive(Clone, Copy)]
pub struct Rate {
    burst: f64,
    per_s: f64,
}

/// The fields of Http2Limits, by their names there.
pub struct Limits {
    pub concurrent_streams_max: u32,
    pub frame_bytes_max: u32,
    pub header_block_bytes_max: usize,
    pub header_list_bytes_max: usize,
    pub header_table_bytes_max: usize,
    pub message_bytes_max: usize,
    pub receiving_bytes_max: usize,
    pub unsent_bytes_max: usize,
    pub unsent_bytes_end: usize,
    pub stream_window_bytes: u32,
    pub connection_window_bytes: u32,
    pub preface_s: f64,
    pub frame_s: f64,
    pub request_s: f64,
    pub window_s: f64,
    pub window_bytes_per_s: f64,
    pub keepalive_s: f64,
    pub keepalive_timeout_s: f64,
    pub drain_s: f64,
    pub resets: Rate,
    pub pings: Rate,
    pub settings: Rate,
    pub empty_frames: Rate,
}

impl Limits {
    pub fn read(limits: &Bound<'_, PyAny>) -> PyResult<Self> {
        let size = |name: &str| limits.getattr(name)?.extract::<u32>();
        let seconds = |name: &str| limits.getattr(name)?.extract::<f64>();
        let rate = |name: &str| -> PyResult<Rate> {
            let rate = limits.getattr(name)?;
            Ok(Rate { burst: rate.getattr("burst")?.extract()?, per_s: rate.getattr("per_s")?.extract()? })
        };
        Ok(Self {
            concurrent_streams_max: size("concurrent_streams_max")?,
            frame_bytes_max: size("frame_bytes_max")?,
            header_block_bytes_max: size("header_block_bytes_max")? as usize,
            header_list_bytes_max: size("header_list_bytes_max")? as usize,
            header_table_bytes_max: size("header_table_bytes_max")? as usize,
            message_bytes_max: size("message_bytes_max")? as usize,
            receiving_bytes_max: size("receiving_bytes_max")? as usize,
            unsent_bytes_max: size("unsent_bytes_max")? as usize,
            unsent_bytes_end: size("unsent_bytes_end")? as usize,
            stream_window_bytes: size("stream_window_bytes")?,
            connection_window_bytes: size("connection_window_bytes")?,
            preface_s: seconds("preface_s")?,
            frame_s: seconds("frame_s")?,
            request_s: seconds("request_s")?,
            window_s: seconds("window_s")?,
            window_bytes_per_s: seconds("window_bytes_per_s")?,
            keepalive_s: seconds("keepalive_s")?,
            keepalive_timeout_s: seconds("keepalive_timeout_s")?,
            drain_s: seconds("drain_s")?,
            resets: rate("resets")?,
            pings: rate("pings")?,
            settings: rate("settings")?,
            empty_frames: rate("empty_frames")?,
        })
    }
}

/// aerobee/grpc/token_bucket.py: a bucket that is full at first.
pub struct TokenBucket {
    rate: Rate,
    tokens: f64,
    seen: f64,
}

impl TokenBucket {
    pub fn new(rate: Rate, now: f64) -> Self {
        Self { rate, tokens: rate.burst, seen: now }
    }

    /// Take a token; false when there is none.
    pub fn take(&mut self, now: f64) -> bool {
        self.tokens = self.rate.burst.min(self.tokens + (now - self.seen) * self.rate.per_s);
        self.seen = now;
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    pub fn fill(&mut self) {
        self.tokens = self.rate.burst;
    }
}
