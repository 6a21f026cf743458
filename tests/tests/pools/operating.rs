//! Pools as an operator meets them: listed, restarted, reloaded and checked, on the wire and on the
//! command line.

use std::time::Duration;

use harness_proto::v1::{self, ErrorCode, PoolState};
use harness_tests::raw::{self, typed};
use harness_tests::{Asker, BOUND, Process, command, eventually, program};
use serde_json::json;
use tonic::Code;

use super::{
    assert_nothing_counted, lives, pids, pool, pool_of, pool_with, reply, start, wait_until_gone,
};

#[test]
fn the_wire_lists_pools_and_restarts_the_one_it_knows() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let channel = raw::connect(harness.address()).await;
        let mut admin = raw::admin(&channel);
        let list = |namespace: &str| v1::ListPoolsRequest {
            namespace: namespace.to_owned(),
        };
        for namespace in ["", "default"] {
            let listed = admin.list_pools(list(namespace)).await.expect("listed");
            let [pool] = &listed.get_ref().pools[..] else {
                panic!("{listed:?}");
            };
            assert_eq!(
                (pool.agent.as_str(), pool.state()),
                ("jsonl", PoolState::Running)
            );
            assert_eq!((pool.size, pool.ready, pool.processes.len()), (2, 2, 2));
            assert!(
                pool.next_start.is_none() && pool.stopped.is_empty(),
                "{pool:?}"
            );
        }
        let other = admin.list_pools(list("other")).await.expect("listed");
        assert!(other.get_ref().pools.is_empty());

        let restart = |agent: &str| v1::RestartPoolRequest {
            agent: agent.to_owned(),
            namespace: String::new(),
        };
        let restarted = admin
            .restart_pool(restart("jsonl"))
            .await
            .expect("restarted");
        let pool = restarted.into_inner().pool.expect("the pool");
        assert_eq!(pool.agent, "jsonl");
        let unknown = admin
            .restart_pool(restart("nobody"))
            .await
            .expect_err("unknown");
        let told = typed(&unknown, Code::InvalidArgument, ErrorCode::InvalidRequest);
        assert!(
            told.message.contains("no pool \"nobody\""),
            "{}",
            told.message
        );
    });
}

#[test]
fn a_restart_replaces_every_process_one_after_the_other_and_drops_no_request() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    let before = pids(&harness.pool("jsonl"));
    let asker = Asker::new(&harness, "jsonl");
    let long = asker.start(&json!({"do": "wait", "ms": 600}), BOUND);
    harness.wait_for_busy("jsonl", 1);
    let restarted = harness.cli(["restart", "jsonl"]);
    assert_eq!(restarted.code, Some(0), "{restarted}");
    assert!(restarted.stdout.contains("jsonl"), "{restarted}");
    for number in 0..50 {
        assert_eq!(asker.ask(&json!(number), BOUND).json(), json!(number));
    }
    assert_eq!(long.answer().json(), json!(null));
    for pid in before {
        wait_until_gone(pid);
    }
    let view = harness.wait_for_full("jsonl");
    assert_nothing_counted(&view);
}

#[test]
fn a_reload_adds_resizes_and_removes_pools_and_drops_no_request() {
    let harness = start(
        &format!("{}{}", pool("size = 1"), pool_of("gone", &[], "")),
        &["jsonl", "gone"],
    );
    let stays = pids(&harness.pool("jsonl"));
    let goes = pids(&harness.pool("gone"));
    let asker = Asker::new(&harness, "gone");
    let last = asker.start(&json!({"do": "wait", "ms": 600}), BOUND);
    harness.wait_for_busy("gone", 1);
    harness.reload(&format!(
        "{}{}",
        pool("size = 3"),
        pool_of("added", &[], "")
    ));
    harness.wait_for_pool("jsonl", "grown", |pool| pool["ready"] == 3);
    harness.wait_for_full("added");
    assert_eq!(reply(&harness, "added", &json!("new")), "new");
    assert_eq!(last.answer().json(), json!(null), "what it had in work");
    wait_until_gone(goes[0]);
    assert!(lives(stays[0]), "a size is no reason to replace a process");

    harness.reload(&pool("size = 1"));
    let view = harness.wait_for_pool("jsonl", "shrunk", |pool| pids(pool).len() == 1);
    assert_eq!(pids(&view), stays);
    let pools = harness.cli(["pools", "--json"]).json();
    assert_eq!(pools.as_array().map(Vec::len), Some(1), "{pools}");
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing_and_is_told() {
    let mut harness = start(&pool(""), &["jsonl"]);
    let before = pids(&harness.pool("jsonl"));
    harness.reload(&pool("sizes = 2"));
    let line = harness.process().wait_for_line("not reloaded");
    assert!(line.contains("did you mean"), "{line}");
    assert_eq!(pids(&harness.pool("jsonl")), before);
    assert_eq!(reply(&harness, "jsonl", &json!(1)), 1);
}

#[test]
fn sighup_without_a_file_is_no_reason_to_end() {
    let mut harness = harness_tests::Harness::start();
    harness.process().signal(harness_tests::Signal::SIGHUP);
    harness.process().wait_for_line("no configuration file");
    assert_eq!(harness.stop().code, Some(0));
}

#[test]
fn a_drained_worker_of_a_pool_is_replaced() {
    let harness = start(&pool(""), &["jsonl"]);
    let pid = pids(&harness.pool("jsonl"))[0];
    let drained = harness.cli(["drain", &format!("jsonl-{pid}")]);
    assert_eq!(drained.code, Some(0), "{drained}");
    wait_until_gone(pid);
    harness.wait_for_full("jsonl");
    assert_eq!(reply(&harness, "jsonl", &json!(1)), 1);
}

#[test]
fn check_tells_the_pools_of_a_valid_file_and_starts_none() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("harness.toml");
    let marker = format!("--marker={}", folder.path().display());
    std::fs::write(&file, pool_of("jsonl", &[&marker], "")).expect("written");
    let file = file.display().to_string();
    let check = |arguments: &[&str]| {
        let mut harness = command("harness");
        harness.arg("check").args(arguments);
        Process::run("harness check", harness)
    };
    let checked = check(&[&file]);
    assert_eq!(checked.code, Some(0), "{checked}");
    assert!(
        checked.stdout.contains("is valid; pools: jsonl"),
        "{checked}"
    );
    let told = check(&[&file, "--json"]);
    assert_eq!(told.json()["pools"], json!(["jsonl"]), "{told}");
    assert!(super::processes_with(&marker).is_empty());

    let missing = check(&["no-such-file.toml"]);
    assert_eq!(missing.code, Some(2), "{missing}");
}

#[test]
fn check_names_the_pool_whose_command_cannot_be_executed() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).expect("made");
    std::fs::write(bin.join("text"), "no program").expect("written");
    std::os::unix::fs::symlink(program("jsonl"), bin.join("tool")).expect("linked");
    let file = folder.path().join("harness.toml");
    let check = |words: &[&str], settings: &str| {
        let config = pool("") + &pool_with("other", words, settings);
        std::fs::write(&file, config).expect("written");
        let mut harness = command("harness");
        harness.arg("check").arg(&file);
        Process::run("harness check", harness)
    };
    let path = format!("env = {{ PATH = {:?} }}", bin.display());
    for (words, settings, part) in [
        (&["no-such-program"][..], "", "no-such-program: No such"),
        (&["bin/no-tool"], "", "bin/no-tool: No such"),
        (&["bin/text"], "", "bin/text: Permission denied"),
        (&["bin/tool"], "cwd = \"bin\"", "bin/tool: No such"),
        (&["sh"], &path, "sh: No such"),
        (
            &["tool"],
            "launcher = [\"no-launcher\"]",
            "no-launcher: No such",
        ),
    ] {
        let refused = check(words, settings);
        assert_eq!(refused.code, Some(2), "{words:?} {settings}{refused}");
        let told = format!("pool \"other\": cannot execute {part}");
        assert!(refused.stderr.contains(&told), "no {told:?} in {refused}");
    }
    for (words, settings) in [
        (&["bin/tool"][..], ""),
        (&["./tool"], "cwd = \"bin\""),
        (&["tool"], &path),
        (&["in-the-container"], "launcher = [\"bin/tool\"]"),
    ] {
        let checked = check(words, settings);
        assert_eq!(checked.code, Some(0), "{words:?} {settings}{checked}");
    }
}

#[test]
fn what_a_worker_writes_to_standard_error_is_in_the_log_with_pool_and_pid() {
    let mut harness = start(&pool(""), &["jsonl"]);
    let pid = pids(&harness.pool("jsonl"))[0];
    super::error(
        &harness,
        &json!({"do": "crash", "code": 3}),
        "WORKER_LOST",
        &[],
    );
    let line = harness.process().wait_for_line("about to crash");
    for part in [
        "pool=jsonl",
        &format!("pid={pid}"),
        "run=\"",
        "stream=\"stderr\"",
    ] {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}

#[test]
fn no_guardian_is_left_of_a_harness_that_has_left() {
    let harness = start(&pool("size = 2"), &["jsonl"]);
    let parent = |pid: u64| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
        let fields = stat.rsplit(") ").next().expect("fields");
        fields.split(' ').nth(1).and_then(|pid| pid.parse().ok())
    };
    let guardians: Vec<u64> = pids(&harness.pool("jsonl"))
        .into_iter()
        .filter_map(parent)
        .collect();
    assert_eq!(guardians.len(), 2);
    harness.stop();
    for pid in guardians {
        eventually("the guardian is gone", Duration::from_secs(2), || {
            (!lives(pid)).then_some(())
        });
    }
}
