//! What is written in which order, and what is undelivered when the call is over.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{Outbox, Outgoing, Undelivered};
use crate::envelope::{Caller, Payload, Request};
use crate::ids::{AgentKey, Attempt, Delivery, Lease, RunId, SlotId, WorkerId};
use crate::slot::End;

fn next(outbox: &Outbox) -> Poll<Option<Result<Outgoing, End>>> {
    outbox.poll_next(&Context::from_waker(Waker::noop()))
}

/// Puts a request there; gives it, and whether it came back as one that is too late.
pub(crate) fn put_request(outbox: &Outbox) -> (Undelivered, Option<Undelivered>) {
    let to = Undelivered {
        worker: WorkerId(Uuid::from_u128(1)),
        delivery: Delivery {
            run: RunId(Uuid::from_u128(2)),
            attempt: Attempt(1),
        },
        lease: Lease([3; 16]),
    };
    let request = Request {
        agent: AgentKey::new("default", "echo"),
        payload: Payload::default(),
        metadata: HashMap::new(),
        caller: Caller {
            subject: "anonymous".into(),
            namespace: "default".into(),
        },
        trace: None,
        parent: None,
        depth: 0,
        durable: None,
    };
    (
        to,
        outbox.request(
            to,
            Arc::new(request),
            (Instant::now(), Duration::ZERO),
            None,
        ),
    )
}

#[test]
fn a_request_the_end_overtakes_is_undelivered() {
    let outbox = Outbox::default();
    let (to, late) = put_request(&outbox);
    assert_eq!(late, None);
    outbox.end(End::Leaving);
    assert!(matches!(next(&outbox), Poll::Ready(Some(Err(_)))));
    assert_eq!(outbox.abandon(), Some(to));
}

#[test]
fn a_request_that_comes_after_the_end_is_undelivered() {
    let outbox = Outbox::default();
    outbox.end(End::Leaving);
    assert!(matches!(next(&outbox), Poll::Ready(Some(Err(_)))));
    let (to, late) = put_request(&outbox);
    assert_eq!((late, outbox.abandon()), (None, Some(to)));
    let (to, late) = put_request(&outbox);
    assert_eq!((late, outbox.abandon()), (Some(to), None));
}

#[test]
fn a_request_is_undelivered_until_the_transport_has_let_go_of_it() {
    let handed_over = || {
        let outbox = Outbox::default();
        outbox.welcome(SlotId(1), None);
        assert!(next(&outbox).is_ready(), "the welcome");
        let (to, _) = put_request(&outbox);
        outbox.let_go();
        assert!(matches!(next(&outbox), Poll::Ready(Some(Ok(_)))));
        (outbox, to)
    };
    let (reset, to) = handed_over();
    assert_eq!(reset.abandon(), Some(to), "a reset drops it");

    let (gone, _) = handed_over();
    gone.let_go();
    assert_eq!(gone.abandon(), None, "it is with the worker");

    let (ended, _) = handed_over();
    ended.end(End::Leaving);
    assert!(matches!(next(&ended), Poll::Ready(Some(Err(_)))));
    assert_eq!(ended.abandon(), None, "the end came after it");
}

#[test]
fn an_acknowledgement_that_comes_late_says_nothing_of_the_next_request() {
    let outbox = Outbox::default();
    outbox.welcome(SlotId(1), None);
    let delivery = put_request(&outbox).0.delivery;
    let earlier = Delivery {
        attempt: Attempt(9),
        ..delivery
    };
    outbox.acknowledge(earlier, 5);
    assert!(next(&outbox).is_ready() && next(&outbox).is_ready());
    assert!(next(&outbox).is_pending());
}

#[test]
fn nothing_but_an_end_comes_before_the_welcome() {
    let outbox = Outbox::default();
    outbox.heartbeat();
    assert!(next(&outbox).is_pending());
    outbox.welcome(SlotId(1), None);
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Ok(Outgoing::Welcome(..))))
    ));
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Ok(Outgoing::Heartbeat)))
    ));

    let refused = Outbox::default();
    refused.end(End::Leaving);
    assert!(matches!(next(&refused), Poll::Ready(Some(Err(_)))));
}

#[test]
fn acknowledgements_and_heartbeats_are_said_once() {
    let outbox = Outbox::default();
    outbox.welcome(SlotId(1), None);
    let delivery = put_request(&outbox).0.delivery;
    for seq in 1..=5 {
        outbox.acknowledge(delivery, seq);
        outbox.heartbeat();
    }
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Ok(Outgoing::Welcome(..))))
    ));
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Ok(Outgoing::Request { .. })))
    ));
    assert_eq!(outbox.acknowledged(), 0);
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Ok(Outgoing::Appended(5))))
    ));
    assert_eq!(outbox.acknowledged(), 5);
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Ok(Outgoing::Heartbeat)))
    ));
    assert!(next(&outbox).is_pending());
}

#[test]
fn the_end_overtakes_and_is_said_once() {
    let outbox = Outbox::default();
    outbox.welcome(SlotId(1), None);
    outbox.end(End::Leaving);
    outbox.end(End::Idle);
    assert!(matches!(
        next(&outbox),
        Poll::Ready(Some(Err(End::Leaving)))
    ));
    assert!(matches!(next(&outbox), Poll::Ready(None)));
}
