//! The gRPC services: convert, call a handle, convert back.
//!
//! The only part that names generated types. Entries pass through as the bytes that came. Every
//! `tonic::Status` is made in `status`.

mod admin_service;
mod admission;
mod attach_body;
mod convert;
mod deadline;
mod ending;
mod entries;
mod events;
mod frames;
mod hang_ups;
mod health;
mod http;
mod many;
mod metrics;
mod pools;
mod records;
mod reply;
mod router;
mod run_service;
mod starting;
mod status;
mod streams;
mod timed_body;
mod turns;
mod unary_body;
mod unsent;
mod worker_service;

pub use records::WireRecords;
pub use router::{Router, router};
pub use status::{grpc_code, retry_rule};
