//! Answers, output, noise and how long a process serves, with each worker and in both modes.

use harness_tests::{Asker, BOUND, eventually};
use serde_json::json;
use uuid::Uuid;

use super::{Make, answers, makes, pid, reply};
use crate::{assert_nothing_counted, pids, start, wait_until_gone};

#[test]
fn a_process_that_dials_back_answers_and_is_used_again() {
    for make in makes() {
        let harness = start(&make.pool(""), &["puppet"]);
        let first = reply(&harness, &json!({"do": "pid"}));
        for _ in 0..3 {
            assert_eq!(reply(&harness, &json!({"do": "pid"})), first, "{make:?}");
        }
        let view = harness.pool("puppet");
        assert_eq!(view["processes"][0]["answered"], 4, "{view}");
        assert_eq!(view["processes"][0]["pid"], first);
        let workers = harness.workers("puppet");
        assert_eq!(
            (&workers[0]["pid"], &workers[0]["peer"]),
            (&first, &json!("pool"))
        );
        assert_eq!(workers[0]["heartbeats"], make != Make::Minimal, "{workers}");
        assert_nothing_counted(&view);
    }
}

/// Two processes that answer once, with time to end by themselves.
pub(super) const ONCE: &str = "mode = \"per-request\"\nsize = 2\nstop = { cancel_grace = \"5s\" }";

#[test]
fn in_per_request_mode_each_request_has_a_process_of_its_own() {
    for make in makes() {
        let harness = start(&make.pool(ONCE), &["puppet"]);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let pid = reply(&harness, &json!({"do": "pid"}))
                .as_u64()
                .expect("a pid");
            assert!(!seen.contains(&pid), "{make:?}: {pid} answered twice");
            seen.push(pid);
        }
        for pid in seen {
            wait_until_gone(pid);
        }
        let view = harness.wait_for_full("puppet");
        assert_nothing_counted(&view);
        let stopped = view["stopped"].as_array().expect("a list");
        assert!(stopped.is_empty(), "{make:?} ended by itself: {view}");
        assert_eq!(view["last_exit"], "exit code 0", "{make:?}");
    }
}

#[test]
fn in_per_request_mode_no_process_answers_two_however_many_ask_at_once() {
    let harness = start(&Make::Rust.pool(ONCE), &["puppet"]);
    let asker = Asker::new(&harness, "puppet");
    let asked: Vec<_> = (0..12)
        .map(|_| asker.start(&json!({"do": "pid"}), BOUND))
        .collect();
    let mut seen: Vec<u64> = asked
        .into_iter()
        .map(|asking| asking.answer().json().as_u64().expect("a pid"))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 12, "{seen:?}");
    assert_nothing_counted(&harness.wait_for_full("puppet"));
}

#[test]
fn output_streams_from_a_process_to_its_caller() {
    for make in makes().into_iter().filter(|make| *make != Make::Minimal) {
        let harness = start(&make.pool(""), &["puppet"]);
        let asker = Asker::new(&harness, "puppet");
        let order = json!({"do": "output", "count": 200});
        let (pieces, answer) = asker.stream(&order, BOUND).rest();
        let expected: Vec<_> = (1..=200).map(|number| json!(number)).collect();
        assert_eq!(pieces, expected, "{make:?}");
        assert_eq!(answer.expect("a reply"), 200);
    }
}

#[test]
fn what_a_process_prints_is_log_with_pool_pid_and_run_and_nothing_else() {
    for make in makes() {
        let mut harness = start(&make.pool(""), &["puppet"]);
        let mark = format!("noise {}", Uuid::new_v4());
        let order = json!({"do": "print", "line": mark, "count": 3});
        let asked = crate::ask(&harness, "puppet", &order, &[]);
        assert_eq!(asked["reply"], json!(null), "{asked}");
        let run = asked["run_id"].as_str().expect("a run").to_owned();
        let pid = pid(&harness);
        let line = harness.process().wait_for_line(&mark);
        for part in [
            "pool=puppet",
            &format!("pid={pid}"),
            &format!("run=\"{run}\""),
            "stream=\"stdout\"",
        ] {
            assert!(line.contains(part), "{make:?}: no {part:?} in {line}");
        }
        assert_eq!(reply(&harness, &answers("and on")), "and on");
        assert_nothing_counted(&harness.pool("puppet"));
    }
}

#[test]
fn more_noise_than_any_buffer_holds_up_nobody() {
    let harness = start(&Make::Rust.pool(""), &["puppet"]);
    let line = "x".repeat(10_000);
    let order = json!({"do": "print", "line": line, "count": 500});
    assert_eq!(reply(&harness, &order), json!(null));
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn a_process_is_replaced_after_max_requests_without_a_gap() {
    for make in makes() {
        let harness = start(&make.pool("max_requests = 3"), &["puppet"]);
        let first = pid(&harness);
        let mut asked = 0;
        eventually("another process answers", BOUND, || {
            asked += 1;
            // Somebody is there at every moment.
            let view = harness.pool("puppet");
            assert!(view["ready"].as_u64() >= Some(1), "{make:?}: {view}");
            (reply(&harness, &json!({"do": "pid"})) != first).then_some(())
        });
        assert!(asked > 3, "{make:?}: it answers three, not {asked}");
        wait_until_gone(first);
        let view = harness.wait_for_pool("puppet", "one process", |pool| pids(pool).len() == 1);
        assert_nothing_counted(&view);
    }
}

#[test]
fn a_process_is_replaced_when_it_is_too_old() {
    let harness = start(
        &Make::Rust.pool("max_age = \"300ms\"\nsize = 2"),
        &["puppet"],
    );
    for pid in pids(&harness.pool("puppet")) {
        wait_until_gone(pid);
    }
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn a_process_gets_what_it_is_to_dial_and_nothing_else_of_the_harnesss() {
    let harness = start(&Make::Rust.pool(""), &["puppet"]);
    let env = reply(&harness, &json!({"do": "env"}));
    let address = env["HARNESS_ADDRESS"].as_str().expect("an address");
    let path = address.strip_prefix("unix:").expect("a Unix socket");
    assert!(path.starts_with('/') && path.len() < 100, "{path}");
    let token = env["HARNESS_TOKEN"].as_str().expect("a token");
    assert_eq!(token.len(), 64, "32 bytes in hexadecimal");
    assert_eq!(env["HARNESS_AGENT"], "puppet");
    let allowed = ["PATH", "LANG", "HOME", "TZ"];
    let variables = env.as_object().expect("variables");
    let others: Vec<&String> = variables
        .keys()
        .filter(|name| !name.starts_with("HARNESS_") && !allowed.contains(&name.as_str()))
        .collect();
    assert!(others.is_empty(), "{others:?}");
    let folder = std::path::Path::new(path)
        .parent()
        .expect("a folder")
        .to_owned();
    assert!(folder.exists());
    harness.stop();
    assert!(!folder.exists(), "its socket goes with the harness");
}

#[test]
fn a_process_may_dial_a_tcp_address_where_the_pool_says_so() {
    for make in makes() {
        let harness = start(&make.pool("address = \"tcp\""), &["puppet"]);
        assert_eq!(reply(&harness, &answers("hello")), "hello", "{make:?}");
        if make == Make::Rust {
            let env = reply(&harness, &json!({"do": "env"}));
            assert_eq!(env["HARNESS_ADDRESS"], harness.address());
        }
        assert_nothing_counted(&harness.pool("puppet"));
    }
}

#[test]
fn an_agent_of_a_pool_asks_another_as_its_pool() {
    let config = format!(
        "{}{}",
        Make::Rust.pool(""),
        Make::Rust.pool_of("other", &[], "")
    );
    let harness = start(&config, &["puppet", "other"]);
    let order = json!({"do": "ask", "agent": "other", "request": {"do": "context"}});
    let told = reply(&harness, &order);
    assert_eq!(told["subject"], "pool/puppet", "{told}");
    let direct = crate::reply(&harness, "other", &json!({"do": "context"}));
    assert_eq!(direct["subject"], "anonymous");
}
