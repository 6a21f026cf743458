//! What the integration tests share: an embedded harness, bare protocol peers, process guards.
//!
//! Owns no assertions about the product; the tests in `tests/` make them.

pub mod raw;
