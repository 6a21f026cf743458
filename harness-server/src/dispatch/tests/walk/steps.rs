//! The steps of a walk and how they are drawn.

use proptest::prelude::*;

use super::Delivery;

/// One step. Numbers pick from what is there, modulo.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Attach {
        worker: u8,
        full: bool,
        schema: u8,
        small: bool,
    },
    Ask {
        agent: u8,
        bytes: u16,
        timeout: u8,
        max_attempts: u8,
        wait: bool,
    },
    Judge(u8, bool),
    Heartbeat(u8, Named),
    Append(u8, Named, Number, u16, u8),
    Reply(u8, Named, Number, u8),
    Odd(u8, u8),
    Lose(u8),
    Cancel(u8),
    Release(u8, bool),
    Resume(u8, bool),
    Pass(u16),
    Leave(bool),
}

/// Which delivery a frame names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named {
    Held,
    Wrong,
}

/// Which worker_seq a frame has.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Next,
    Again,
    Gap,
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![30 => Just(Named::Held), 1 => Just(Named::Wrong)]
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![30 => Just(Number::Next), 3 => Just(Number::Again), 1 => Just(Number::Gap)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6_u8, any::<bool>(), 0..4_u8, prop::bool::weighted(0.1)).prop_map(
            |(worker, full, schema, small)| Step::Attach { worker, full, schema, small }
        ),
        10 => (0..3_u8, 0..2500_u16, 0..60_u8, 1..4_u8, any::<bool>()).prop_map(
            |(agent, bytes, timeout, max_attempts, wait)| Step::Ask {
                agent, bytes, timeout, max_attempts, wait
            }
        ),
        8 => (any::<u8>(), prop::bool::weighted(0.8)).prop_map(|(n, takes)| Step::Judge(n, takes)),
        6 => (any::<u8>(), named()).prop_map(|(n, named)| Step::Heartbeat(n, named)),
        4 => (any::<u8>(), named(), number(), 0..1200_u16, 0..6_u8)
            .prop_map(|(n, named, seq, bytes, acked)| Step::Append(n, named, seq, bytes, acked)),
        8 => (any::<u8>(), named(), number(), 0..8_u8)
            .prop_map(|(n, named, seq, what)| Step::Reply(n, named, seq, what)),
        2 => (any::<u8>(), 0..6_u8).prop_map(|(n, what)| Step::Odd(n, what)),
        2 => any::<u8>().prop_map(Step::Lose),
        3 => any::<u8>().prop_map(Step::Cancel),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(n, right)| Step::Release(n, right)),
        4 => (any::<u8>(), prop::bool::weighted(0.8))
            .prop_map(|(n, right)| Step::Resume(n, right)),
        6 => (0..9000_u16).prop_map(Step::Pass),
    ]
}

/// A walk: mostly with a harness that stays, sometimes with one that leaves at the end.
pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stays = prop::collection::vec(step(), 20..160);
    let leave = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let rest = prop::collection::vec(step(), 0..20);
    (stays, leave, rest).prop_map(|(mut steps, leave, rest)| {
        steps.extend(leave.map(Step::Leave));
        steps.extend(rest);
        steps
    })
}

pub(super) fn pick(n: u8, of: usize) -> Option<usize> {
    usize::from(n).checked_rem(of)
}

pub(super) fn name(held: Delivery, named: Named) -> Delivery {
    match named {
        Named::Held => held,
        Named::Wrong => Delivery {
            attempt: held.attempt.next(),
            ..held
        },
    }
}

pub(super) fn place(number: Number, last: u64) -> u64 {
    match number {
        Number::Next => last + 1,
        Number::Again => last,
        Number::Gap => last + 2,
    }
}
