//! Pools that cannot start: bounded restarts, the reason, and nobody else slowed.

use std::time::{Duration, Instant};

use harness_tests::{BOUND, Harness, Process, command};
use serde_json::json;

use super::{ask, assert_says, error, pool, pool_with, reply, start};

const BROKEN: [&str; 3] = ["sh", "-c", "echo no module named agent >&2; exit 7"];

/// A harness with a pool that cannot start, once it has given up, and one that can.
fn broken() -> Harness {
    let config = format!("{}{}", pool_with("broken", &BROKEN, "size = 2"), pool(""));
    let harness = Harness::builder().config(config).start();
    harness.wait_for_pool("broken", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    harness
}

#[test]
fn a_pool_that_cannot_start_gives_up_with_its_reason_and_the_others_serve() {
    let harness = broken();
    let view = harness.pool("broken");
    assert!(view["failed_starts"].as_u64() >= Some(5), "{view}");
    assert_eq!((&view["ready"], &view["crashes"]), (&json!(0), &json!(0)));
    assert_eq!(view["last_exit"], "exit code 7");
    assert_eq!(view["last_stderr"], json!(["no module named agent"]));
    assert_eq!(view["next_start_seconds"], json!(null));

    let told = ask(&harness, "broken", &json!(1), &[]);
    assert_eq!(told["error"]["code"], "CRASH_LOOP", "{told}");
    assert_eq!(told["error"]["retryable"], false);
    let parts = [
        "crash-looping",
        "exit code 7",
        "no module named agent",
        "harness restart",
    ];
    assert_says(&told["error"], &parts);

    let text = harness.cli(["pools"]).stdout;
    for part in [
        "CRASH_LOOPING",
        "exit code 7",
        "broken | no module named agent",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    harness.wait_for_full("jsonl");
    assert_eq!(reply(&harness, "jsonl", &json!("and on")), "and on");
}

#[test]
fn a_restart_tries_again_and_a_reload_with_another_command_mends() {
    let harness = broken();
    let restarted = harness.cli(["restart", "broken", "--json"]);
    assert_eq!(restarted.code, Some(0), "{restarted}");
    assert_ne!(restarted.json()["state"], "CRASH_LOOPING", "{restarted}");
    harness.wait_for_pool("broken", "crash-looping again", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    let worker = harness_tests::program("jsonl").display().to_string();
    let mended = pool_with("broken", &[&worker], "");
    harness.reload(&format!("{mended}{}", pool("")));
    harness.wait_for_full("broken");
    assert_eq!(reply(&harness, "broken", &json!("mended")), "mended");
}

#[test]
fn a_command_that_is_not_there_is_a_failed_start_that_names_it() {
    let config = pool_with("nowhere", &["no-such-program"], "");
    let harness = Harness::builder().config(config).start();
    let view = harness.wait_for_pool("nowhere", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    let last_exit = view["last_exit"].as_str().expect("a reason");
    assert!(last_exit.contains("no-such-program"), "{view}");
}

#[test]
fn a_worker_that_writes_before_it_is_asked_is_a_failed_start_that_names_the_line() {
    let script = "echo starting up; exec cat >/dev/null";
    for mode in ["reuse", "per-request"] {
        let settings = format!("mode = \"{mode}\"");
        let config = pool_with("chatty", &["sh", "-c", script], &settings);
        let harness = Harness::builder().config(config).start();
        let view = harness.wait_for_pool("chatty", "crash-looping", |pool| {
            pool["state"] == "CRASH_LOOPING"
        });
        assert_eq!(view["failed_starts"], 5, "{view}");
        let part = "wrote \"starting up\" although it was asked nothing";
        let last_exit = view["last_exit"].as_str().expect("a reason");
        assert!(last_exit.contains(part), "{view}");
        let told = ask(&harness, "chatty", &json!(1), &[]);
        assert_says(&told["error"], &["crash-looping", part]);
    }
}

#[test]
fn a_worker_from_elsewhere_serves_the_agent_of_a_crash_looping_pool() {
    let config = pool_with("puppet", &BROKEN, "");
    let harness = Harness::builder().config(config).start();
    harness.wait_for_pool("puppet", "crash-looping", |pool| {
        pool["state"] == "CRASH_LOOPING"
    });
    let _puppet = harness_tests::Worker::puppet().start(&harness);
    let order = json!({"do": "reply", "value": 5});
    assert_eq!(reply(&harness, "puppet", &order), 5);
}

#[test]
fn crashes_within_the_window_are_a_crash_loop_too() {
    let settings = "restart = { max_crashes = 3 }";
    let harness = start(&pool(settings), &["jsonl"]);
    for _ in 0..2 {
        assert_eq!(reply(&harness, "jsonl", &json!("useful")), "useful");
        error(
            &harness,
            &json!({"do": "crash", "code": 3}),
            "WORKER_LOST",
            &[],
        );
        harness.wait_for_full("jsonl");
    }
    error(
        &harness,
        &json!({"do": "crash", "code": 3}),
        "WORKER_LOST",
        &[],
    );
    let told = error(&harness, &json!(1), "CRASH_LOOP", &[]);
    assert_says(&told, &["3 crashes within"]);
    assert_eq!(harness.pool("jsonl")["crashes"], 3);
}

#[test]
fn health_and_readiness_tell_a_crash_loop() {
    let harness = broken();
    harness.wait_for_full("jsonl");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let serving = |service: &str| {
        runtime.block_on(async {
            let channel = harness_tests::raw::connect(harness.address()).await;
            let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
            let request = tonic_health::pb::HealthCheckRequest {
                service: service.to_owned(),
            };
            let answer = health.check(request).await.expect("a known agent");
            answer.into_inner().status()
        })
    };
    use tonic_health::pb::health_check_response::ServingStatus;
    assert_eq!(serving("broken"), ServingStatus::NotServing);
    assert_eq!(serving("jsonl"), ServingStatus::Serving);
    assert_eq!(serving(""), ServingStatus::Serving);

    let mut curl = std::process::Command::new("curl");
    curl.args(["-s", &format!("http://{}/readyz", harness.address())]);
    let ready = Process::run("curl", curl);
    assert_eq!(
        ready.stdout, "ready\npool broken is crash-looping\n",
        "{ready}"
    );
}

#[test]
fn a_pool_that_cannot_start_slows_no_other() {
    // It fails for ever, as fast as it may.
    let restart = "size = 4\nrestart = { max_failed_starts = 0, max_crashes = 0 }";
    let slowest = |config: &str| {
        let harness = start(config, &["jsonl"]);
        let asker = harness_tests::Asker::new(&harness, "jsonl");
        let mut times: Vec<Duration> = (0..200)
            .map(|number| {
                let start = Instant::now();
                assert_eq!(asker.ask(&json!(number), BOUND).json(), json!(number));
                start.elapsed()
            })
            .collect();
        times.sort();
        times[times.len() / 2]
    };
    let alone = slowest(&pool("size = 2"));
    let beside = slowest(&format!(
        "{}{}",
        pool_with("broken", &BROKEN, restart),
        pool("size = 2")
    ));
    println!("median alone {alone:?}, beside a broken pool {beside:?}");
    assert!(
        beside < alone * 3 + Duration::from_millis(20),
        "{alone:?} and {beside:?}"
    );
}

#[test]
fn settings_that_cannot_be_given_are_refused_at_start_and_named() {
    for (config, parts) in [
        (
            pool("sandbox = { user = \"no-such-user\" }"),
            ["sandbox.user", "no-such-user"],
        ),
        (
            pool("pass_env = [\"NOT_SET_ANYWHERE\"]"),
            ["pass_env", "NOT_SET_ANYWHERE"],
        ),
        (
            pool("cwd = \"no/such/folder\""),
            ["folder", "no/such/folder"],
        ),
    ] {
        let folder = tempfile::TempDir::new().expect("a folder");
        let file = folder.path().join("harness.toml");
        std::fs::write(&file, &config).expect("written");
        let file = file.display().to_string();
        for arguments in [
            vec!["serve", "--listen", "127.0.0.1:0", "--config", &file],
            vec!["check", &file],
        ] {
            let mut harness = command("harness");
            harness.args(arguments);
            let refused = Process::run("harness", harness);
            assert_eq!(refused.code, Some(2), "{config}{refused}");
            for part in parts {
                assert!(refused.stderr.contains(part), "no {part:?} in {refused}");
            }
        }
    }
}
