//! Many ends at once: whatever the order of replies, deadlines and hang-ups, every caller gets one
//! answer on time, no work is left behind and every slot comes back.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Harness, eventually};
use tonic::Code;

use crate::{AMPLE, Kind, millis, reply, wait};

with_both_workers! {
    a_storm_of_deadlines_leaves_all_slots_ready,
    a_storm_of_hang_ups_leaves_all_slots_ready,
}

const SLOTS: u64 = 4;
const ASKS: u64 = 120;

fn a_storm_of_deadlines_leaves_all_slots_ready(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().slots(SLOTS).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    // Work of up to 20 ms against deadlines of up to 300 ms, queued 30 deep.
    let asked: Vec<_> = (0..ASKS)
        .map(|number| asker.start(&wait(number * 7 % 21), millis(1 + number * 37 % 300)))
        .collect();
    for asking in asked {
        let answer = asking.answer();
        if answer.result.is_err() {
            let _ = answer.error(Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
        }
    }
    assert_calm(&harness, &asker);
}

fn a_storm_of_hang_ups_leaves_all_slots_ready(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().slots(SLOTS).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let mut kept = Vec::new();
    for number in 0..ASKS {
        let asking = asker.start(&wait(number * 7 % 21), AMPLE);
        kept.push((number, asking));
        // Two of three hang up, some before they are sent, some queued, some in work.
        if kept.len() > 8 {
            let (number, asking) = kept.remove(0);
            if number % 3 == 0 {
                assert!(asking.answer().json().is_null());
            } else {
                asking.hang_up();
            }
        }
    }
    for (_, asking) in kept {
        asking.hang_up();
    }
    assert_calm(&harness, &asker);
}

/// Nothing queued, nothing owed, every slot READY and in use.
#[track_caller]
fn assert_calm(harness: &Harness, asker: &Asker) {
    harness.wait_for_queued("puppet", 0);
    harness.wait_for_ready("puppet", SLOTS);
    eventually("nothing is owed", BOUND, || {
        let agent = harness.agent("puppet")?;
        (agent["unreleased"] == 0 && agent["slots_other"] == 0).then_some(())
    });
    let asked: Vec<_> = (0..SLOTS).map(|_| asker.start(&wait(300), AMPLE)).collect();
    harness.wait_for_busy("puppet", SLOTS);
    for asking in asked {
        assert!(asking.answer().json().is_null());
    }
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}
