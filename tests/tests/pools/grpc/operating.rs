//! Pools of processes that dial back, as an operator meets them.

use harness_tests::{Asker, BOUND, Process, command};
use serde_json::json;

use super::{Make, answers, makes, pid, reply, sh};
use crate::{assert_nothing_counted, lives, pids, start, wait_until_gone};

#[test]
fn a_restart_replaces_every_process_one_after_the_other_and_drops_no_request() {
    for make in makes() {
        let harness = start(&make.pool("size = 2"), &["puppet"]);
        let before = pids(&harness.pool("puppet"));
        let asker = Asker::new(&harness, "puppet");
        let long = asker.start(&json!({"do": "wait", "ms": 600}), BOUND);
        harness.wait_for_busy("puppet", 1);
        let restarted = harness.cli(["restart", "puppet"]);
        assert_eq!(restarted.code, Some(0), "{restarted}");
        for number in 0..50 {
            let order = json!({"do": "reply", "value": number});
            assert_eq!(asker.ask(&order, BOUND).json(), json!(number));
        }
        assert_eq!(long.answer().json(), json!(null));
        for pid in before {
            wait_until_gone(pid);
        }
        assert_nothing_counted(&harness.wait_for_full("puppet"));
    }
}

#[test]
fn a_reload_adds_resizes_and_removes_pools_and_drops_no_request() {
    let gone = Make::Rust.pool_of("gone", &[], "");
    let config = format!("{}{gone}", Make::Rust.pool("size = 1"));
    let harness = start(&config, &["puppet", "gone"]);
    let stays = pid(&harness);
    let goes = pids(&harness.pool("gone"))[0];
    let asker = Asker::new(&harness, "gone");
    let last = asker.start(&json!({"do": "wait", "ms": 600}), BOUND);
    harness.wait_for_busy("gone", 1);
    let added = Make::Rust.pool_of("added", &[], "");
    harness.reload(&format!("{}{added}", Make::Rust.pool("size = 3")));
    harness.wait_for_pool("puppet", "grown", |pool| pool["ready"] == 3);
    harness.wait_for_full("added");
    assert_eq!(crate::reply(&harness, "added", &answers("new")), "new");
    assert_eq!(last.answer().json(), json!(null), "what it had in work");
    wait_until_gone(goes);
    assert!(lives(stays), "a size is no reason to replace a process");

    harness.reload(&Make::Rust.pool("size = 1"));
    let view = harness.wait_for_pool("puppet", "shrunk", |pool| pids(pool).len() == 1);
    assert_eq!(pids(&view), [stays]);
    assert_eq!(reply(&harness, &answers("and on")), "and on");
}

#[test]
fn a_reload_with_another_command_replaces_the_processes_and_drops_no_request() {
    let harness = start(&Make::Rust.pool(""), &["puppet"]);
    let before = pid(&harness);
    let asker = Asker::new(&harness, "puppet");
    let long = asker.start(&json!({"do": "wait", "ms": 600}), BOUND);
    harness.wait_for_busy("puppet", 1);
    harness.reload(&Make::Rust.pool_of("puppet", &[("PUPPET_LABEL", "new=yes")], ""));
    assert_eq!(long.answer().json(), json!(null));
    wait_until_gone(before);
    let view = harness.wait_for_full("puppet");
    assert_nothing_counted(&view);
    let workers = harness.workers("puppet");
    assert_eq!(workers[0]["labels"]["new"], "yes", "{workers}");
}

#[test]
fn a_drained_worker_of_a_pool_is_replaced() {
    for make in makes() {
        let harness = start(&make.pool(""), &["puppet"]);
        let workers = harness.workers("puppet");
        let id = workers[0]["worker_id"].as_str().expect("an id").to_owned();
        let pid = pid(&harness);
        let drained = harness.cli(["drain", &id]);
        assert_eq!(drained.code, Some(0), "{drained}");
        wait_until_gone(pid);
        assert_nothing_counted(&harness.wait_for_full("puppet"));
        assert_eq!(reply(&harness, &answers("and on")), "and on");
    }
}

#[test]
fn what_a_pool_cannot_be_given_is_refused_at_start_and_by_check() {
    let tcp_alone = sh("a", "true", "address = \"tcp\"");
    let no_network = sh(
        "a",
        "true",
        "address = \"tcp\"\nsandbox = { network = false }",
    );
    for (config, parts) in [
        (
            format!("listen = [\"unix:/tmp/no/such/s\"]\n{tcp_alone}"),
            ["address = \"tcp\"", "127.0.0.1:7070"],
        ),
        (no_network, ["address", "sandbox.network"]),
    ] {
        let folder = tempfile::TempDir::new().expect("a folder");
        let file = folder.path().join("harness.toml");
        std::fs::write(&file, &config).expect("written");
        let mut harness = command("harness");
        harness.arg("check").arg(&file);
        let refused = Process::run("harness check", harness);
        assert_eq!(refused.code, Some(2), "{config}{refused}");
        for part in parts {
            assert!(refused.stderr.contains(part), "no {part:?} in {refused}");
        }
    }
    // The default dialect is that of these tests.
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("harness.toml");
    std::fs::write(&file, Make::Rust.pool("")).expect("written");
    let mut harness = command("harness");
    harness.arg("check").arg(&file);
    let checked = Process::run("harness check", harness);
    assert_eq!(checked.code, Some(0), "{checked}");
}
