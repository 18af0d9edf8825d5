"""The hot path: bursts of ordinary sends and pulls, in Python here and in Rust in native/."""
