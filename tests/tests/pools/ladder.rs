//! The kill ladder: the caller on time, each rung in the journal with how long it took, the group
//! and its grandchildren gone, another process in the place.

use std::time::{Duration, Instant};

use harness_proto::v1::{StopProof, StopRung, entry::Kind};
use harness_tests::{BOUND, Harness, eventually, program};
use serde_json::{Value, json};

use super::{
    assert_nothing_counted, error, journal, pids, pool, pool_with, processes_with, reply, seconds,
    start, wait_until_gone,
};

/// What a journal says of the stop of a run's work.
pub(crate) fn rungs(entries: &[Kind]) -> Vec<StopRung> {
    entries
        .iter()
        .filter_map(|entry| match entry {
            Kind::AttemptStopping(stopping) => Some(stopping.rung()),
            _ => None,
        })
        .collect()
}

#[track_caller]
pub(crate) fn stopped(entries: &[Kind]) -> (StopProof, Duration) {
    let Some(Kind::AttemptStopped(stopped)) = entries.last() else {
        panic!("the last entry says that it has stopped: {entries:?}");
    };
    let took = stopped.took.expect("how long it took");
    let took = Duration::new(took.seconds as u64, took.nanos as u32);
    (stopped.how(), took)
}

/// A deadline that a worker sleeps over: on time, and whose run.
#[track_caller]
fn deadline(harness: &Harness, order: &Value) -> String {
    let start = Instant::now();
    let told = error(harness, order, "DEADLINE_EXCEEDED", &["--timeout", "400ms"]);
    let took = start.elapsed();
    let due = Duration::from_millis(400);
    assert!(
        took >= due && took < due + Duration::from_secs(1),
        "{took:?}"
    );
    told["run_id"].as_str().expect("a run id").to_owned()
}

#[test]
fn a_worker_that_takes_sigterm_is_ended_by_it() {
    let harness = start(&pool(""), &["jsonl"]);
    let pid = pids(&harness.pool("jsonl"))[0];
    let run = deadline(&harness, &json!({"do": "hang"}));
    let entries = journal(&harness, &run);
    assert_eq!(rungs(&entries), [StopRung::CallEnded, StopRung::Sigterm]);
    let (how, took) = stopped(&entries);
    assert_eq!(how, StopProof::Killed);
    assert!(took < Duration::from_secs(2), "{took:?}");
    wait_until_gone(pid);
    let view = harness.wait_for_full("jsonl");
    let stop = &view["stopped"][0];
    assert_eq!(
        (&stop["pid"], &stop["sigkill_after_seconds"]),
        (&json!(pid), &json!(null))
    );
    assert_eq!(stop["reason"], "its request was cancelled");
    let order = [
        seconds(&stop["sigterm_after_seconds"]),
        seconds(&stop["reaped_after_seconds"]),
        seconds(&stop["replaced_after_seconds"]),
    ];
    assert!(order.is_sorted(), "{view}");
    assert_nothing_counted(&view);
    assert_eq!(view["last_exit"], "signal 15 (SIGTERM)");
    assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
}

#[test]
fn a_worker_that_ignores_sigterm_is_killed_after_term_grace_and_shown_until_then() {
    let worker = program("jsonl").display().to_string();
    let script = format!("trap '' TERM; exec {worker}");
    let settings = "stop = { term_grace = \"700ms\" }";
    let config = pool_with("jsonl", &["sh", "-c", &script], settings);
    let harness = start(&config, &["jsonl"]);
    let run = deadline(&harness, &json!({"do": "hang"}));
    // Its caller has been answered; it is still there, and on which rung.
    let shown = eventually("the worker is shown on its rung", BOUND, || {
        let workers = harness.workers("jsonl");
        let work = workers[0]["unreleased"][0].clone();
        (work["rung"] == "SIGTERM").then_some((work, harness.pool("jsonl")))
    });
    let (work, view) = shown;
    assert_eq!(work["run_id"], run.as_str());
    assert_eq!(work["code"], "DEADLINE_EXCEEDED");
    assert_eq!(view["ready"], 0, "its seat is not free: {view}");
    assert_eq!(view["processes"][0]["state"], "STOPPING", "{view}");
    let text = harness.cli(["workers"]).stdout;
    assert!(
        text.contains("SIGTERM") || text.contains("SIGKILL"),
        "{text}"
    );

    let entries = journal(&harness, &run);
    let all = [StopRung::CallEnded, StopRung::Sigterm, StopRung::Sigkill];
    assert_eq!(rungs(&entries), all);
    let (how, took) = stopped(&entries);
    assert_eq!(how, StopProof::Killed);
    assert!(took >= Duration::from_millis(700), "{took:?}");
    let view = harness.wait_for_full("jsonl");
    let stop = &view["stopped"][0];
    assert!(seconds(&stop["sigkill_after_seconds"]) >= Duration::from_millis(700));
    assert!(seconds(&stop["reaped_after_seconds"]) >= seconds(&stop["sigkill_after_seconds"]));
    assert!(seconds(&stop["replaced_after_seconds"]) >= seconds(&stop["reaped_after_seconds"]));
    let text = harness.cli(["pools"]).stdout;
    for part in [
        "SIGTERM after",
        "SIGKILL after",
        "reaped after",
        "replaced after",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
}

#[test]
fn what_a_worker_has_started_is_gone_before_its_seat_is_free() {
    let harness = start(&pool(""), &["jsonl"]);
    for (setsid, length) in [(false, "86411.25"), (true, "86412.25")] {
        let order = json!({"do": "hang_with_child", "seconds": length, "setsid": setsid});
        let run = deadline(&harness, &order);
        // Until nothing of it is left.
        stopped(&journal(&harness, &run));
        let left = processes_with(&format!("sleep {length}"));
        assert!(left.is_empty(), "{left:?} are left, setsid: {setsid}");
        harness.wait_for_full("jsonl");
    }
}

#[test]
fn a_caller_who_hangs_up_ends_the_work() {
    let harness = start(&pool(""), &["jsonl"]);
    let pid = pids(&harness.pool("jsonl"))[0];
    let asker = harness_tests::Asker::new(&harness, "jsonl");
    let asking = asker.start(&json!({"do": "hang"}), BOUND);
    harness.wait_for_busy("jsonl", 1);
    asking.hang_up();
    wait_until_gone(pid);
    harness.wait_for_full("jsonl");
}

#[test]
fn an_attempt_that_takes_too_long_is_stopped_and_the_next_gets_another_process() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    let options = ["--attempts", "2", "--attempt-timeout", "200ms"];
    let told = error(
        &harness,
        &json!({"do": "hang"}),
        "ATTEMPT_TIMEOUT",
        &options,
    );
    let run = told["run_id"].as_str().expect("a run id");
    let entries = journal(&harness, run);
    let sigterms = rungs(&entries);
    let sigterms = sigterms.iter().filter(|rung| **rung == StopRung::Sigterm);
    assert_eq!(sigterms.count(), 2, "{entries:?}");
    harness.wait_for_full("jsonl");
}
