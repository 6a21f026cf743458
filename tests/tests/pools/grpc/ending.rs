//! The kill ladder of a process that dials back: a cancelled request that is released keeps its
//! process, and one that is not climbs rung by rung.

use std::time::{Duration, Instant};

use harness_proto::v1::{ErrorCode, StopProof, StopRung};
use harness_tests::{Asker, BOUND, Harness, eventually};
use serde_json::{Value, json};

use super::{Make, answers, fails, makes, pid, reply};
use crate::ladder::{rungs, stopped};
use crate::{
    assert_nothing_counted, journal, lives, pids, processes_with, seconds, start, wait_until_gone,
};

/// A deadline that a worker works over: on time, and whose run.
#[track_caller]
fn deadline(harness: &Harness, order: &Value) -> String {
    let start = Instant::now();
    let told = fails(harness, order, "DEADLINE_EXCEEDED", &["--timeout", "400ms"]);
    let took = start.elapsed();
    let due = Duration::from_millis(400);
    assert!(
        took >= due && took < due + Duration::from_secs(1),
        "{took:?}"
    );
    told["run_id"].as_str().expect("a run id").to_owned()
}

#[test]
fn work_that_is_released_within_cancel_grace_keeps_its_process() {
    for make in makes() {
        // More than a busy machine takes.
        let harness = start(&make.pool("stop = { cancel_grace = \"10s\" }"), &["puppet"]);
        let pid = pid(&harness);
        for _ in 0..3 {
            let run = deadline(&harness, &json!({"do": "hang"}));
            let entries = journal(&harness, &run);
            assert_eq!(rungs(&entries), [StopRung::CallEnded], "{make:?}");
            let (how, took) = stopped(&entries);
            assert_eq!(how, StopProof::Released, "{make:?}");
            assert!(took < Duration::from_secs(5), "{took:?}");
            assert_eq!(reply(&harness, &answers("and on")), "and on");
        }
        let view = harness.wait_for_full("puppet");
        assert_eq!(pids(&view), [pid], "{make:?}: the same process");
        assert_eq!(view["stopped"], json!([]), "{make:?}");
        assert_nothing_counted(&view);
    }
}

#[test]
fn a_caller_who_hangs_up_has_the_work_released() {
    for make in makes() {
        let harness = start(&make.pool("stop = { cancel_grace = \"10s\" }"), &["puppet"]);
        let pid = pid(&harness);
        let asker = Asker::new(&harness, "puppet");
        let asking = asker.start(&json!({"do": "hang"}), BOUND);
        harness.wait_for_busy("puppet", 1);
        asking.hang_up();
        harness.wait_for_full("puppet");
        assert_eq!(reply(&harness, &answers("and on")), "and on");
        assert_eq!(pids(&harness.pool("puppet")), [pid], "{make:?}");
    }
}

#[test]
fn work_that_goes_on_after_cancel_grace_gets_sigterm() {
    let env = [("PUPPET_SIGNALS", "off")];
    let config = Make::Rust.pool_of("puppet", &env, "stop = { term_grace = \"10s\" }");
    let harness = start(&config, &["puppet"]);
    let pid = pid(&harness);
    let run = deadline(&harness, &json!({"do": "block", "ms": 60_000}));
    let entries = journal(&harness, &run);
    assert_eq!(rungs(&entries), [StopRung::CallEnded, StopRung::Sigterm]);
    let (how, took) = stopped(&entries);
    assert_eq!(how, StopProof::Killed);
    let grace = Duration::from_millis(500);
    assert!(
        took >= grace && took < grace + Duration::from_secs(5),
        "{took:?}"
    );
    wait_until_gone(pid);
    let view = harness.wait_for_full("puppet");
    let stop = &view["stopped"][0];
    assert_eq!(
        (&stop["pid"], &stop["reason"]),
        (&json!(pid), &json!("its request was cancelled"))
    );
    assert!(seconds(&stop["sigterm_after_seconds"]) >= grace, "{view}");
    assert_eq!(stop["sigkill_after_seconds"], json!(null));
    assert_eq!(view["last_exit"], "signal 15 (SIGTERM)");
    assert_nothing_counted(&view);
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn work_that_ignores_sigterm_too_is_killed_and_replaced_and_shown_until_then() {
    for make in makes() {
        let settings = "stop = { cancel_grace = \"300ms\", term_grace = \"700ms\" }";
        let harness = start(&make.pool(settings), &["puppet"]);
        let pid = pid(&harness);
        // Each of the three waits for its agent when it is asked to leave.
        let run = deadline(&harness, &json!({"do": "block", "ms": 60_000}));
        let (work, view) = eventually("the worker is shown on its rung", BOUND, || {
            let workers = harness.workers("puppet");
            let work = workers[0]["unreleased"][0].clone();
            (work["rung"] == "SIGTERM").then_some((work, harness.pool("puppet")))
        });
        assert_eq!(
            (&work["run_id"], &work["code"]),
            (&json!(run), &json!("DEADLINE_EXCEEDED"))
        );
        assert_eq!(view["ready"], 0, "its seat is not free: {view}");

        let entries = journal(&harness, &run);
        let all = [StopRung::CallEnded, StopRung::Sigterm, StopRung::Sigkill];
        assert_eq!(rungs(&entries), all, "{make:?}");
        let (how, took) = stopped(&entries);
        assert_eq!(how, StopProof::Killed);
        assert!(took >= Duration::from_secs(1), "{took:?}");
        wait_until_gone(pid);
        let view = harness.wait_for_full("puppet");
        let stop = &view["stopped"][0];
        let times = [
            seconds(&stop["sigterm_after_seconds"]),
            seconds(&stop["sigkill_after_seconds"]),
            seconds(&stop["reaped_after_seconds"]),
            seconds(&stop["replaced_after_seconds"]),
        ];
        assert!(times.is_sorted(), "{view}");
        assert_nothing_counted(&view);
        assert_eq!(reply(&harness, &answers("and on")), "and on");
    }
}

#[test]
fn in_per_request_mode_a_cancelled_process_is_not_believed_and_ended() {
    let harness = start(&Make::Rust.pool("mode = \"per-request\""), &["puppet"]);
    let pid = pid(&harness);
    let run = deadline(&harness, &json!({"do": "hang"}));
    let (how, _) = stopped(&journal(&harness, &run));
    assert_ne!(how, StopProof::Released);
    wait_until_gone(pid);
    let view = harness.wait_for_full("puppet");
    assert_nothing_counted(&view);
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn an_attempt_that_takes_too_long_is_stopped_and_the_next_is_made() {
    let harness = start(&Make::Rust.pool("size = 2"), &["puppet"]);
    let options = ["--attempts", "2", "--attempt-timeout", "200ms"];
    let told = fails(
        &harness,
        &json!({"do": "hang"}),
        "ATTEMPT_TIMEOUT",
        &options,
    );
    let run = told["run_id"].as_str().expect("a run id");
    let entries = journal(&harness, run);
    assert_eq!(rungs(&entries), [StopRung::CallEnded; 2], "{entries:?}");
    assert_eq!(stopped(&entries).0, StopProof::Released);
    harness.wait_for_full("puppet");
}

#[test]
fn a_cancel_behind_unread_output_is_immediate() {
    for make in makes().into_iter().filter(|make| *make != Make::Minimal) {
        let harness = start(&make.pool("stop = { cancel_grace = \"10s\" }"), &["puppet"]);
        let pid = pid(&harness);
        let asker = Asker::new(&harness, "puppet");
        let order = json!({"do": "output", "count": 100_000, "bytes": 8_000});
        // Nobody reads it: all there is of buffers fills.
        let stream = asker.stream(&order, BOUND);
        let run = stream.run_id().to_owned();
        harness.wait_for_busy("puppet", 1);
        let start = Instant::now();
        asker.cancel(&run, "enough");
        harness.wait_for_full("puppet");
        eventually("the slot is back", BOUND, || {
            (harness.agent("puppet")?["slots_ready"] == 1).then_some(())
        });
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(pids(&harness.pool("puppet")), [pid], "{make:?}");
        drop(stream);
    }
}

#[test]
fn what_a_process_has_started_is_gone_before_its_seat_is_free() {
    let settings = "stop = { cancel_grace = \"0s\" }";
    let config = Make::Rust.pool_of("puppet", &[("PUPPET_SIGNALS", "off")], settings);
    let harness = start(&config, &["puppet"]);
    for (setsid, length) in [(false, "86413.25"), (true, "86414.25")] {
        let pid = pid(&harness);
        let order = json!({"do": "hang_with_child", "seconds": length, "setsid": setsid});
        let asker = Asker::new(&harness, "puppet");
        let asking = asker.start(&order, BOUND);
        eventually("its child runs", BOUND, || {
            (!processes_with(&format!("sleep {length}")).is_empty()).then_some(())
        });
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid")),
            nix::sys::signal::Signal::SIGKILL,
        )
        .expect("killed");
        asking
            .answer()
            .error(tonic::Code::Aborted, ErrorCode::WorkerLost);
        harness.wait_for_pool("puppet", "another process", |pool| {
            pool["state"] == "RUNNING" && pids(pool) != [pid]
        });
        let left = processes_with(&format!("sleep {length}"));
        assert!(left.is_empty(), "{left:?} are left, setsid: {setsid}");
    }
}

#[test]
fn an_idle_harness_leaves_at_once_and_leaves_no_process() {
    for make in makes() {
        let harness = start(&make.pool("size = 2"), &["puppet"]);
        let pids = pids(&harness.pool("puppet"));
        let left = harness.stop();
        assert_eq!(left.code, Some(0), "{left}");
        for pid in pids {
            assert!(!lives(pid), "{make:?}: {pid} is left");
        }
    }
}

#[test]
fn a_leaving_harness_finishes_what_is_in_work_and_ends_the_rest_after_its_grace() {
    let grace = "[limits]\nshutdown_grace = \"1s\"\n";
    let config = format!("{grace}{}", Make::Rust.pool("size = 2"));
    let harness = start(&config, &["puppet"]);
    let asker = Asker::new(&harness, "puppet");
    let short = asker.start(&json!({"do": "wait", "ms": 400}), BOUND);
    let long = asker.start(&json!({"do": "hang"}), BOUND);
    harness.wait_for_busy("puppet", 2);
    let pids = pids(&harness.pool("puppet"));
    let left = harness.stop();
    assert_eq!(left.code, Some(0), "{left}");
    assert_eq!(short.answer().json(), json!(null));
    long.answer()
        .error(tonic::Code::Unavailable, ErrorCode::ShuttingDown);
    for pid in pids {
        assert!(!lives(pid), "{pid} is left");
    }
}
