//! The `harness.v1` protocol: messages, clients and servers generated from the `.proto` files
//! beside this crate. The normative text is this folder's `README.md`.
//!
//! Owns generated code and the `codec` of the relay; no conversions. `tests/generated.rs` regenerates it
//! and fails when it differs from what is committed.

pub mod codec;

/// The protocol as its two ends see it.
#[allow(
    clippy::all,
    clippy::too_many_lines,
    missing_docs,
    rustdoc::all,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "gen/harness.v1.rs"]
pub mod v1;

/// The protocol as one who passes it on sees it: the same encoding, but the content of a journal
/// entry (`Append.entry`, `JournalEntry.entry`) is the bytes that came, so that relaying and
/// storing it loses nothing a newer writer added.
#[allow(
    clippy::all,
    clippy::too_many_lines,
    missing_docs,
    rustdoc::all,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "gen/harness.v1.relay.rs"]
pub mod relay;

/// The encoded `google.protobuf.FileDescriptorSet` of `harness.v1` and what it imports, for server
/// reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/harness.v1.binpb");

/// The DDL of the one table that holds journals on disk, in SQLite's dialect. The server's store
/// and the SDK's local journal both have it, so one reader reads both. Running it where the table
/// is there already changes nothing.
pub const JOURNAL_SQL: &str = include_str!("../journal.sql");
