//! Random events to one run: its numbers only grow, and it ends once.

use proptest::prelude::*;

use super::{Attempt, Cause, Code, Event, Failure, ID, Next, Payload, Run, SECOND, SLOT, State};

const CAUSES: [Cause; 10] = [
    Cause::AgentError,
    Cause::InvalidReply,
    Cause::ProtocolViolation,
    Cause::FrameTooLarge,
    Cause::AttemptTimeout,
    Cause::Lost,
    Cause::Died,
    Cause::NotAccepted,
    Cause::Declined,
    Cause::Restarted,
];

fn event(n: u8, cause: usize) -> Event {
    match n {
        0..=5 => Event::Delivered(SLOT),
        6..=13 => {
            let mut failure = Failure::new(Code::WorkerLost, "it broke");
            if CAUSES[cause] == Cause::FrameTooLarge {
                failure = Failure::new(Code::PayloadTooLarge, "large");
            }
            Event::Failed(CAUSES[cause], failure)
        }
        14 => Event::OutputSeen,
        15 => Event::Replied(Payload::default()),
        20 => Event::Lost,
        21 => Event::Resumed(SLOT),
        16 => Event::Refused(Failure::new(Code::Busy, "full")),
        17 => Event::DeadlinePassed(String::new()),
        _ => Event::Cancelled(String::new()),
    }
}

fn walk(max_attempts: u32, steps: Vec<(u8, usize)>) {
    let mut now = std::time::Instant::now();
    let mut run = Run::new(ID, super::terms(max_attempts, now), now);
    let (mut delivered, mut retries, mut in_a_row, mut seen, mut ended) = (0, 0, 0, false, false);
    for (n, cause) in steps {
        now += SECOND;
        let event = event(n, cause);
        let taken = matches!((&event, run.state()), (Event::Delivered(_), State::Queued));
        let counts = !matches!(
            event,
            Event::Failed(Cause::NotAccepted | Cause::Declined, _)
        );
        let restarted = matches!(event, Event::Failed(Cause::Restarted, _));
        seen |= matches!(event, Event::OutputSeen) && !ended;
        let next = run.apply(now, event);
        delivered += u32::from(taken);
        assert_eq!(
            run.attempt(),
            Attempt(delivered),
            "a number for each delivery"
        );
        assert_eq!(run.next_delivery().attempt, Attempt(delivered + 1));
        match next {
            Next::Nothing => {}
            Next::Requeue if restarted => {}
            Next::Requeue => {
                in_a_row += 1;
                assert!(
                    !counts && !seen && in_a_row <= 2,
                    "it does not go on for ever"
                );
            }
            Next::BackOff(retry, failure) => {
                retries += 1;
                assert!(counts || in_a_row == 2, "the third in a row counts");
                in_a_row = 0;
                assert_eq!(retry, retries, "the waits are numbered");
                assert!(retry < max_attempts && !seen);
                assert_eq!(failure.code, Code::WorkerLost);
            }
            Next::Ended(outcome) => {
                assert!(!ended, "it ends once");
                ended = true;
                if let Err(failure) = outcome {
                    assert_eq!((failure.run, failure.attempt), (Some(ID), run.attempt()));
                }
            }
        }
        assert_eq!(matches!(run.state(), State::Ended), ended);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_run_counts_right_and_ends_once(
        max_attempts in 1..6_u32,
        steps in prop::collection::vec((0..22_u8, 0..CAUSES.len()), 1..60),
    ) {
        walk(max_attempts, steps);
    }
}
