//! Many ends at once: whatever the order of replies, deadlines and hang-ups, every caller gets one
//! answer on time, no work is left behind and every slot comes back.

use std::time::Duration;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Asking, Harness};
use tonic::Code;

use crate::{
    AMPLE, Kind, assert_calm, assert_dropped, hang, millis, next_started, reply, started, wait,
};

with_each_worker! {
    three_thousand_hang_ups_at_once_leave_the_other_calls_of_their_connection_alone,
    a_storm_of_deadlines_leaves_all_slots_ready,
    a_storm_of_hang_ups_leaves_all_slots_ready,
}

const SLOTS: u64 = 4;
const ASKS: u64 = 120;
/// The timeout of what must outlast the sending of a crowd.
const PATIENT: Duration = Duration::from_secs(60);

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
    assert_calm(&harness, &asker, SLOTS);
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
    assert_calm(&harness, &asker, SLOTS);
}

fn three_thousand_hang_ups_at_once_leave_the_other_calls_of_their_connection_alone(kind: Kind) {
    let roomy = "[limits]\nqueue_runs = 5000\n";
    let harness = Harness::builder().config(roomy).start();
    let mut worker = kind.puppet().slots(SLOTS).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let running: Vec<_> = (0..SLOTS).map(|_| asker.start(&hang(), PATIENT)).collect();
    next_started(worker.process(), SLOTS as usize - 1);
    let crowd: Vec<_> = (0..3_000).map(|_| asker.start(&wait(1), PATIENT)).collect();
    harness.wait_for_queued("puppet", 3_000);
    let queued = asker.start(&reply("still here"), PATIENT);
    harness.wait_for_queued("puppet", 3_001);
    Asking::hang_up_all(crowd);

    // The crowd is gone, those that ran run on and the one that waits waits on.
    harness.wait_for_queued("puppet", 1);
    harness.wait_for_busy("puppet", SLOTS);
    let begun = started(worker.process());
    assert_eq!(begun.len(), SLOTS as usize);
    let told = worker.process().stderr();
    assert!(!told.contains("dropped"), "{told}");
    Asking::hang_up_all(running);
    for run_id in begun {
        assert_dropped(worker.process(), &run_id);
    }
    assert_eq!(queued.answer().json(), "still here");
    assert_calm(&harness, &asker, SLOTS);
}
