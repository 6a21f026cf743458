//! What a worker's entry says here: who wrote it, in which attempt, under which number, and which
//! step it records, if it does.

use bytes::Bytes;
use harness_server::ids::{Attempt, WorkerId};
use harness_server::slot::EntryKind;
use uuid::Uuid;

/// An entry of so many bytes at least.
pub(super) fn encode(
    kind: EntryKind,
    (attempt, worker, seq): (Attempt, WorkerId, u64),
    step: u8,
    padding: usize,
) -> Bytes {
    let replayed = matches!(kind, EntryKind::Step | EntryKind::Usage);
    let mut bytes = vec![u8::from(replayed), u8::from(kind == EntryKind::Step), step];
    bytes.extend(attempt.0.to_be_bytes());
    bytes.extend(seq.to_be_bytes());
    bytes.extend(worker.0.as_bytes());
    bytes.resize(bytes.len() + padding, 0);
    bytes.into()
}

pub(super) fn is_replayed(bytes: &[u8]) -> bool {
    bytes[0] == 1
}

/// The step that is recorded.
pub(super) fn step_of(bytes: &[u8]) -> Option<u8> {
    (bytes[1] == 1).then_some(bytes[2])
}

/// Who wrote it.
pub(super) fn origin(bytes: &[u8]) -> (Attempt, WorkerId, u64) {
    let attempt = u32::from_be_bytes(bytes[3..7].try_into().expect("four bytes"));
    let seq = u64::from_be_bytes(bytes[7..15].try_into().expect("eight bytes"));
    let worker = Uuid::from_slice(&bytes[15..31]).expect("sixteen bytes");
    (Attempt(attempt), WorkerId(worker), seq)
}
