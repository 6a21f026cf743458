//! Random frames to one slot, held against a naive account of its numbers and its window.

use proptest::prelude::*;

use super::{
    End, EntryKind, Event, HELD, Instant, Level, PAST, RULES, SECOND, Slot, Verdict, Violation,
};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next number plus this, its size, and how many are unacknowledged at most.
    Append(i8, u64, u64),
    Heartbeat,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let offset = prop_oneof![12 => Just(0_i8), 2 => -3..0_i8, 1 => 1..3_i8];
    let append = (offset, 0..130_u64, 0..4_u64)
        .prop_map(|(offset, bytes, behind)| Step::Append(offset, bytes, behind));
    prop::collection::vec(prop_oneof![9 => append, 1 => Just(Step::Heartbeat)], 1..40)
}

/// What an append must come to: each one's size by its number, and the number acknowledged.
fn expected(sizes: &[u64], level: Level, seq: u64, bytes: u64, acknowledged: u64) -> Verdict {
    let last = sizes.len() as u64;
    if (1..=last).contains(&seq) {
        return Verdict::AcknowledgeAgain(last);
    }
    let broken = |violation| Verdict::End(End::Violation(violation), Some(HELD));
    if seq != last + 1 {
        return broken(Violation::Gap {
            expected: last + 1,
            got: seq,
        });
    }
    let unacked = &sizes[acknowledged as usize..];
    let sum = unacked.iter().sum::<u64>() + bytes;
    let fits = unacked.is_empty() || sum <= RULES.unacked_bytes;
    if level == Level::Full && (unacked.len() >= RULES.unacked_entries || !fits) {
        return broken(Violation::WindowPassed);
    }
    Verdict::Take
}

/// A slot that has answered one request and holds the next.
fn busy(level: Level, now: Instant) -> Slot {
    let mut slot = Slot::new(level, now);
    slot.apply(now, &RULES, Event::Welcomed);
    for delivery in [PAST, HELD] {
        let assigned = Event::Assigned {
            delivery,
            accept_timeout: SECOND,
        };
        slot.apply(now, &RULES, assigned);
        if delivery == PAST {
            let reply = Event::Reply {
                delivery,
                seq: 1,
                declined: false,
            };
            slot.apply(now, &RULES, reply);
        }
    }
    slot
}

fn walk(level: Level, steps: Vec<Step>) {
    let now = Instant::now();
    let mut slot = busy(level, now);
    let mut sizes = Vec::new();
    let mut acknowledged = 0;
    for step in steps {
        let Step::Append(offset, bytes, behind) = step else {
            let verdict = slot.apply(now, &RULES, Event::Heartbeat(Some(HELD)));
            assert_eq!(verdict, Verdict::Fine);
            continue;
        };
        let last = sizes.len() as u64;
        // What was acknowledged stays so.
        acknowledged = last.saturating_sub(behind).max(acknowledged);
        let seq = (last + 1).saturating_add_signed(offset.into());
        let verdict = slot.apply(
            now,
            &RULES,
            Event::Append {
                delivery: HELD,
                seq,
                kind: EntryKind::Plain,
                bytes,
                acknowledged,
            },
        );
        assert_eq!(verdict, expected(&sizes, level, seq, bytes, acknowledged));
        match verdict {
            Verdict::Take => sizes.push(bytes),
            Verdict::End(..) => return,
            Verdict::Fine
            | Verdict::Free
            | Verdict::AcknowledgeAgain(_)
            | Verdict::Stale
            | Verdict::Answered(_)
            | Verdict::Declined(_) => {}
        }
        assert_eq!(
            slot.last_seq(),
            Some(sizes.len() as u64),
            "no number is skipped"
        );
    }
    let reply = Event::Reply {
        delivery: HELD,
        seq: sizes.len() as u64 + 1,
        declined: false,
    };
    assert_eq!(slot.apply(now, &RULES, reply), Verdict::Answered(HELD));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn numbers_and_window_are_what_a_list_says(steps in steps(), full in any::<bool>()) {
        walk(if full { Level::Full } else { Level::Minimal }, steps);
    }
}
