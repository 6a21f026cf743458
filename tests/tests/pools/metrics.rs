//! What `GET /metrics` tells of agents and pools, read as Prometheus reads it.

use std::collections::BTreeMap;

use harness_tests::{BOUND, Harness, Process, eventually};
use serde_json::json;

use super::{ask, error, pool, pool_with, reply, start};

/// Every sample, by its name and labels as they are written.
#[track_caller]
fn metrics(harness: &Harness) -> BTreeMap<String, f64> {
    let mut curl = std::process::Command::new("curl");
    curl.args(["-si", &format!("http://{}/metrics", harness.address())]);
    let answer = Process::run("curl", curl);
    let (head, text) = answer
        .stdout
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("{answer}"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let content_type = "content-type: text/plain; version=0.0.4";
    assert!(head.to_lowercase().contains(content_type), "{head}");
    let mut samples = BTreeMap::new();
    let mut described = Vec::new();
    for line in text.lines() {
        if let Some(description) = line.strip_prefix("# ") {
            described.extend(description.split(' ').nth(1));
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let family = name.split('{').next().unwrap_or_default();
        assert!(described.contains(&family), "{family} has no description");
        let value = value.parse().expect("a number");
        assert_eq!(samples.insert(name.to_owned(), value), None, "{name} twice");
    }
    samples
}

#[track_caller]
fn sample(samples: &BTreeMap<String, f64>, name: &str, labels: &str) -> f64 {
    let name = format!("{name}{{namespace=\"default\",agent={labels}}}");
    *samples
        .get(&name)
        .unwrap_or_else(|| panic!("no {name} in {samples:#?}"))
}

#[test]
fn the_kill_ladder_and_crashes_are_counted_with_their_times() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    assert_eq!(reply(&harness, "jsonl", &json!("useful")), "useful");
    let crash = json!({"do": "crash", "code": 3});
    error(&harness, &crash, "WORKER_LOST", &[]);
    let hang = json!({"do": "hang"});
    error(
        &harness,
        &hang,
        "DEADLINE_EXCEEDED",
        &["--timeout", "300ms"],
    );
    harness.wait_for_pool("jsonl", "a stopped process replaced", |pool| {
        pool["ready"] == 2 && pool["stopped"][0]["replaced_after_seconds"].is_number()
    });
    let told = metrics(&harness);
    for (name, labels, expected) in [
        ("harness_pool_size", "\"jsonl\"", 2.0),
        ("harness_pool_processes", "\"jsonl\",state=\"ready\"", 2.0),
        (
            "harness_pool_processes",
            "\"jsonl\",state=\"stopping\"",
            0.0,
        ),
        ("harness_pool_crashes_total", "\"jsonl\"", 1.0),
        ("harness_pool_failed_starts_total", "\"jsonl\"", 0.0),
        ("harness_pool_restarts_total", "\"jsonl\"", 2.0),
        ("harness_pool_crash_looping", "\"jsonl\"", 0.0),
        (
            "harness_pool_stop_rungs_total",
            "\"jsonl\",rung=\"released\"",
            0.0,
        ),
        (
            "harness_pool_stop_rungs_total",
            "\"jsonl\",rung=\"sigterm\"",
            1.0,
        ),
        (
            "harness_pool_stop_rungs_total",
            "\"jsonl\",rung=\"sigkill\"",
            0.0,
        ),
        (
            "harness_pool_stop_rungs_total",
            "\"jsonl\",rung=\"reaped\"",
            1.0,
        ),
        ("harness_agent_slots", "\"jsonl\",state=\"ready\"", 2.0),
        ("harness_agent_unreleased_requests", "\"jsonl\"", 0.0),
    ] {
        assert_eq!(sample(&told, name, labels), expected, "{name} {labels}");
    }
    let time = |rung: &str| {
        let labels = format!("\"jsonl\",rung=\"{rung}\"");
        sample(&told, "harness_pool_stop_rung_seconds_total", &labels)
    };
    assert!(
        time("reaped") >= time("sigterm") && time("reaped") > 0.0,
        "{told:#?}"
    );
}

#[test]
fn a_worker_that_lets_go_in_time_is_a_rung_of_its_own() {
    let puppet = harness_tests::program("puppet").display().to_string();
    let config = format!("[[pool]]\nagent = \"puppet\"\ncommand = [\"{puppet}\"]\n");
    let harness = start(&config, &["puppet"]);
    let hang = json!({"do": "hang"});
    let told = ask(&harness, "puppet", &hang, &["--timeout", "300ms"]);
    assert_eq!(told["error"]["code"], "DEADLINE_EXCEEDED", "{told}");
    let rungs = |told: &BTreeMap<String, f64>, rung: &str| {
        let labels = format!("\"puppet\",rung=\"{rung}\"");
        sample(told, "harness_pool_stop_rungs_total", &labels)
    };
    let told = eventually("a released request", BOUND, || {
        let told = metrics(&harness);
        (rungs(&told, "released") == 1.0).then_some(told)
    });
    assert_eq!(
        (rungs(&told, "sigterm"), rungs(&told, "reaped")),
        (0.0, 0.0),
        "{told:#?}"
    );
    assert_eq!(
        sample(&told, "harness_pool_restarts_total", "\"puppet\""),
        0.0
    );
}

#[test]
fn queue_depth_and_runs_in_work_are_told_while_they_last() {
    let harness = start(&pool(""), &["jsonl"]);
    let asker = harness_tests::Asker::new(&harness, "jsonl");
    let hang = json!({"do": "hang"});
    let _open: Vec<_> = (0..3).map(|_| asker.start(&hang, BOUND)).collect();
    eventually("one in work and two in the queue", BOUND, || {
        let told = metrics(&harness);
        let busy = sample(&told, "harness_agent_slots", "\"jsonl\",state=\"busy\"");
        let queued = sample(&told, "harness_agent_queued_runs", "\"jsonl\"");
        (busy == 1.0 && queued == 2.0).then_some(())
    });
}

#[test]
fn a_crash_loop_is_a_metric_of_its_pool_alone() {
    let broken = pool_with("broken", &["sh", "-c", "exit 7"], "");
    let harness = start(&format!("{broken}{}", pool("")), &["jsonl"]);
    harness.wait_for_pool("broken", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    let told = metrics(&harness);
    let of = |agent: &str| sample(&told, "harness_pool_crash_looping", agent);
    assert_eq!((of("\"broken\""), of("\"jsonl\"")), (1.0, 0.0));
    let failed = |agent: &str| sample(&told, "harness_pool_failed_starts_total", agent);
    assert_eq!((failed("\"broken\""), failed("\"jsonl\"")), (5.0, 0.0));
}

#[test]
fn a_harness_without_pools_tells_of_its_agents() {
    let harness = Harness::start();
    let _echo = harness_tests::Worker::start(&harness, "echo");
    let told = metrics(&harness);
    assert_eq!(
        sample(&told, "harness_agent_slots", "\"echo\",state=\"ready\""),
        1.0
    );
    assert!(
        !told.keys().any(|name| name.starts_with("harness_pool_")),
        "{told:#?}"
    );
}
