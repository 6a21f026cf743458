//! The floor: what three processes cost with nothing in the middle but a map.
//!
//! A client asks a bare server, unary or many on one call; the server relays each ask over one bidi
//! stream a slot, opened by a hello and a welcome, to a bare worker, which echoes it. The messages
//! are those of `harness.v1` so that payloads are the same bytes; nothing is checked, timed, numbered
//! or kept. Sockets, payloads, allocator and runtime are those of the harness.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod worker;

mod relay;
