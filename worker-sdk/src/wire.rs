//! Between the wire's generated types and this crate's own.
//!
//! Owns every conversion; with `connect`, `client` and `worker::call` it is where tonic and prost
//! are named. Decides nothing: what a frame or an end means is `session`'s affair.

pub(crate) mod admin;
pub(crate) mod entries;
pub(crate) mod runs;
pub(crate) mod status;

use std::time::Duration;

use harness_proto::v1;

use crate::payload::Payload;
use crate::session::{Delivery, Held, Inbound, Lease, Limits, Outbound, Previous, Reply, Welcome};
use crate::worker::Profile;

const PROTOCOL_VERSION: u32 = 1;
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(5);
/// A shorter interval would make heartbeats the work.
const LEAST_HEARTBEAT: Duration = Duration::from_millis(10);
const DEFAULT_UNACKED_ENTRIES: u32 = 64;
const DEFAULT_UNACKED_BYTES: u64 = 256 << 10;
const DEFAULT_PAYLOAD_BYTES: u64 = (4 << 20) - (64 << 10);

pub(crate) fn payload_out(payload: Payload) -> v1::Payload {
    v1::Payload {
        content_type: payload.content_type().to_owned(),
        data: payload.into_data(),
    }
}

pub(crate) fn payload_in(payload: v1::Payload) -> Payload {
    Payload::new(payload.content_type, payload.data)
}

/// The longest span the wire can say, 10,000 years; adding it to an instant cannot overflow.
pub(crate) const LONGEST: Duration = Duration::from_secs(315_576_000_000);

/// A span that is negative or malformed on the wire is none at all; one that is too long is the longest.
pub(crate) fn duration_in(duration: prost_types::Duration) -> Duration {
    let seconds = u64::try_from(duration.seconds).ok();
    let nanos = u32::try_from(duration.nanos)
        .ok()
        .filter(|nanos| *nanos < 1_000_000_000);
    match (seconds, nanos) {
        (Some(seconds), Some(nanos)) => Duration::new(seconds, nanos).min(LONGEST),
        (Some(_) | None, None) | (None, Some(_)) => Duration::ZERO,
    }
}

/// Longer than the wire can say is the longest it can.
pub(crate) fn duration_out(duration: Duration) -> prost_types::Duration {
    // Both numbers fit: the seconds are at most those of LONGEST.
    let span = duration.min(LONGEST);
    prost_types::Duration {
        seconds: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(span.subsec_nanos()).unwrap_or(0),
    }
}

pub(crate) fn inbound(frame: v1::AttachResponse) -> Inbound {
    use v1::attach_response::Frame;
    match frame.frame {
        Some(Frame::Welcome(welcome)) => Inbound::Welcome(welcome_in(welcome)),
        Some(Frame::Request(request)) => Inbound::Request(Box::new(delivery(request))),
        Some(Frame::Entry(entry)) => Inbound::Entry(entries::recorded(entry).map(Box::new)),
        Some(Frame::Appended(appended)) => Inbound::Appended {
            worker_seq: appended.worker_seq,
        },
        Some(Frame::Heartbeat(_)) => Inbound::Heartbeat,
        Some(Frame::Drain(drain)) => Inbound::Drain {
            reason: drain.reason,
        },
        None => Inbound::Unknown,
    }
}

/// A limit that is not set is the protocol's default.
fn welcome_in(welcome: v1::Welcome) -> Welcome {
    let interval = welcome
        .heartbeat_interval
        .map_or(DEFAULT_HEARTBEAT, duration_in);
    let limits = welcome.limits.unwrap_or_default();
    let or = |value: u64, default: u64| if value == 0 { default } else { value };
    Welcome {
        heartbeat_interval: interval.max(LEAST_HEARTBEAT),
        limits: Limits {
            unacked_entries: match limits.unacked_entries {
                0 => DEFAULT_UNACKED_ENTRIES,
                entries => entries,
            },
            unacked_bytes: or(limits.unacked_bytes, DEFAULT_UNACKED_BYTES),
            payload_bytes: or(limits.payload_bytes, DEFAULT_PAYLOAD_BYTES),
            entry_bytes: or(limits.entry_bytes, entries::ENTRY_BYTES_MAX),
        },
        // When the attempt is over has not moved: what is left to it says nothing new.
        resumed: welcome.resume.map(|resumed| resumed.last_worker_seq),
    }
}

fn delivery(request: v1::Request) -> Delivery {
    let caller = request.caller.unwrap_or_default();
    let trace = request.trace.unwrap_or_default();
    Delivery {
        lease: Lease {
            held: Held {
                run_id: request.run_id,
                attempt: request.attempt,
            },
            token: request.lease,
        },
        payload: payload_in(request.payload.unwrap_or_default()),
        time_left: request.time_left.map_or(Duration::ZERO, duration_in),
        max_reply_bytes: request.max_reply_bytes,
        durable: request.durable,
        metadata: request.metadata,
        caller_subject: caller.subject,
        namespace: caller.namespace,
        depth: request.depth,
        traceparent: trace.traceparent,
        tracestate: trace.tracestate,
        idempotency_key: request.idempotency_key,
        reattach_window: request.reattach_window.map_or(Duration::ZERO, duration_in),
        replay_entries: request.replay_entries,
        recorded: Vec::new(),
    }
}

pub(crate) fn outbound(frame: Outbound) -> v1::AttachRequest {
    use v1::attach_request::Frame;
    let frame = match frame {
        Outbound::Heartbeat { held } => {
            let (run_id, attempt) =
                held.map_or_else(Default::default, |held| (held.run_id, held.attempt));
            Frame::Heartbeat(v1::WorkerHeartbeat { run_id, attempt })
        }
        Outbound::Append {
            held,
            worker_seq,
            entry,
        } => Frame::Append(v1::Append {
            run_id: held.run_id,
            attempt: held.attempt,
            worker_seq,
            entry: Some(entries::entry_out(entry)),
        }),
        Outbound::Reply {
            held,
            worker_seq,
            reply,
        } => Frame::Reply(v1::Reply {
            run_id: held.run_id,
            attempt: held.attempt,
            worker_seq,
            outcome: Some(match reply {
                Reply::Value(payload) => v1::reply::Outcome::Value(payload_out(payload)),
                Reply::Error(error) => v1::reply::Outcome::Error(entries::error_out(*error)),
            }),
        }),
        Outbound::Leave => Frame::Leave(v1::Leave {}),
    };
    v1::AttachRequest { frame: Some(frame) }
}

fn previous_out(previous: Previous) -> v1::hello::Previous {
    match previous {
        Previous::Released(lease) => v1::hello::Previous::Released(v1::Released {
            run_id: lease.held.run_id,
            attempt: lease.held.attempt,
            lease: lease.token,
        }),
        Previous::Resume(lease) => v1::hello::Previous::Resume(v1::Resume {
            run_id: lease.held.run_id,
            attempt: lease.held.attempt,
            lease: lease.token,
        }),
    }
}

pub(crate) fn hello(profile: &Profile, previous: Option<Previous>) -> v1::AttachRequest {
    let hello = v1::Hello {
        protocol_version: PROTOCOL_VERSION,
        features: Vec::new(),
        worker: Some(v1::WorkerInfo {
            worker_id: profile.worker_id.clone(),
            name: profile.worker_name.clone(),
            pid: std::process::id(),
            host: profile.host.clone(),
            language: "rust".to_owned(),
            sdk_version: concat!("worker-sdk/", env!("CARGO_PKG_VERSION")).to_owned(),
            labels: profile.labels.clone(),
        }),
        agent: Some(v1::AgentInfo {
            name: profile.agent.clone(),
            version: profile.version.clone(),
            description: profile.description.clone(),
            request_schema: profile.request_schema.clone(),
            reply_schema: profile.reply_schema.clone(),
            labels: Default::default(),
        }),
        namespace: profile.namespace.clone(),
        heartbeats: true,
        max_receive_bytes: profile.max_receive_bytes,
        previous: previous.map(previous_out),
    };
    v1::AttachRequest {
        frame: Some(v1::attach_request::Frame::Hello(hello)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn no_span_of_the_wire_overflows_an_instant() {
        for (seconds, nanos) in [(i64::MAX, 999_999_999), (i64::MIN, -1), (-1, 0), (5, -1)] {
            let span = duration_in(prost_types::Duration { seconds, nanos });
            assert!(
                Instant::now().checked_add(span * 3).is_some(),
                "{seconds} {nanos}"
            );
        }
        assert_eq!(duration_in(duration_out(Duration::MAX)), LONGEST);
        let span = Duration::new(3, 7);
        assert_eq!(duration_in(duration_out(span)), span);
    }

    #[test]
    fn limits_that_are_not_set_are_the_protocols_defaults() {
        let welcome = welcome_in(v1::Welcome::default());
        assert_eq!(welcome.heartbeat_interval, Duration::from_secs(5));
        let limits = welcome.limits;
        assert_eq!(
            (limits.unacked_entries, limits.unacked_bytes),
            (64, 262_144)
        );
        assert_eq!(
            (limits.payload_bytes, limits.entry_bytes),
            (4_128_768, 1_048_576)
        );
    }

    #[test]
    fn a_frame_of_no_known_case_is_ignored() {
        assert!(matches!(
            inbound(v1::AttachResponse { frame: None }),
            Inbound::Unknown
        ));
    }
}
