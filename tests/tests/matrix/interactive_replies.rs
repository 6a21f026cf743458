//! Asks under `interactive_reattach_window` whose work is done while their call is lost, noticed or
//! not: the SDK keeps the reply and sends it again.

use std::time::Instant;

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, BOUND, Signal, Way, eventually};
use tonic::Code;

use crate::behind_proxy::{SLOTS, assert_back, behind_proxy};
use crate::stages::{LONG, Loss, Stages, WATCHFUL, at_work, suspend};
use crate::{AMPLE, Kind, assert_calm, millis, started, wait};

#[test]
fn work_that_is_done_while_its_call_is_away_is_answered_after_the_resume() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
    let (asking, _) = at_work(&asker, &mut worker, &stages);
    proxy.go_down();
    harness.wait_for_busy("puppet", 0);
    stages.let_on(1);
    stages.wait_for("done");
    harness.wait_for_ready("puppet", 0);
    proxy.go_up();
    assert_eq!(asking.answer().json(), 1);
    stages.assert_done_once();
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn work_that_is_done_before_anybody_notices_the_loss_of_its_call_is_answered_too() {
    let losses: [Loss; 4] = [
        ("stalled both ways", |proxy| proxy.stall(Way::Both)),
        ("stalled to the harness", |proxy| {
            proxy.stall(Way::ToHarness)
        }),
        ("stalled to the worker", |proxy| proxy.stall(Way::ToPeer)),
        ("swallowed", |proxy| proxy.swallow(Way::Both)),
    ];
    for (how, loses) in losses {
        let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, WATCHFUL);
        let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
        let (asking, _) = at_work(&asker, &mut worker, &stages);
        loses(&proxy);
        stages.let_on(1);
        assert_eq!(asking.answer().json(), 1, "{how}");
        stages.assert_done_once();
        assert_back(&harness, &proxy, 1);
    }
}

#[test]
fn work_that_is_done_when_its_worker_goes_on_after_it_was_suspended_is_answered_too() {
    let (harness, _proxy, mut worker) = behind_proxy(Kind::Rust, WATCHFUL);
    let (asker, stages) = (Asker::new(&harness, "puppet"), Stages::new(1));
    let (asking, _) = at_work(&asker, &mut worker, &stages);
    suspend(&harness, &mut worker);
    // It is done as soon as it goes on, and may reply on the call that is over.
    stages.let_on(1);
    worker.process().signal(Signal::SIGCONT);
    assert_eq!(asking.answer().json(), 1);
    stages.assert_done_once();
    harness.wait_for_ready("puppet", SLOTS);
}

#[test]
fn an_ask_whose_call_is_cut_under_its_reply_is_answered_once_and_its_slot_serves_on() {
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, LONG);
    let asker = Asker::new(&harness, "puppet");
    // From the first byte of the reply's frame to what comes after it.
    for bytes in [1, 9, 20, 40, 60, 80, 100, 120] {
        let (stages, before) = (Stages::new(1), proxy.accepted());
        let (asking, _) = at_work(&asker, &mut worker, &stages);
        proxy.cut_after(Way::ToHarness, bytes);
        stages.let_on(1);
        let answer = asking.answer();
        assert!(answer.took < AMPLE / 2, "{bytes}: {:?}", answer.took);
        assert_eq!(answer.json(), 1, "{bytes}");
        stages.assert_done_once();
        // Where so many bytes have not gone by yet.
        proxy.cut();
        assert_back(&harness, &proxy, before);
    }
}

#[test]
fn short_asks_whose_calls_are_cut_at_any_moment_are_answered_or_lost_within_their_window() {
    const ROUNDS: u64 = 60;
    let window = millis(2_000);
    let settings = format!("[limits]\ninteractive_reattach_window = \"{window:?}\"\n");
    let (harness, proxy, mut worker) = behind_proxy(Kind::Rust, &settings);
    let asker = Asker::new(&harness, "puppet");
    let mut lost = 0;
    for round in 0..ROUNDS {
        let asked: Vec<_> = (0..SLOTS).map(|_| asker.start(&wait(10), AMPLE)).collect();
        // From before the requests are written to after the replies are.
        let moment = Instant::now() + millis(20).mul_f64(round as f64 / ROUNDS as f64);
        eventually("the moment has come", BOUND, || {
            (Instant::now() >= moment).then_some(())
        });
        proxy.cut();
        for asking in asked {
            let answer = asking.answer();
            assert!(answer.took < 5 * window, "{round}: {:?}", answer.took);
            if answer.result.is_ok() {
                assert!(answer.json().is_null());
            } else {
                let _ = answer.error(Code::Aborted, ErrorCode::WorkerLost);
                lost += 1;
            }
        }
    }
    // What was on its way to the worker, which then knows of nothing to come back to.
    assert!(lost <= ROUNDS * SLOTS / 2, "{lost} lost");
    let mut begun = started(worker.process());
    begun.sort_unstable();
    begun.dedup();
    assert_eq!(begun.len(), started(worker.process()).len(), "none twice");
    assert_calm(&harness, &asker, SLOTS);
}
