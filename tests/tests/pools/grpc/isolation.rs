//! A process that is kept from nearly everything still reaches the harness by its socket.

use std::path::Path;

use harness_tests::guarded::public;
use nix::unistd::geteuid;
use serde_json::json;

use super::{answers, fails, makes, pool_with, reply};
use crate::{assert_nothing_counted, start};

/// The folders that a program needs to run, as a setting.
fn read(own: &Path) -> String {
    let folders = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"];
    let mut read: Vec<&str> = folders
        .into_iter()
        .filter(|path| Path::new(path).exists())
        .collect();
    read.push(own.to_str().expect("UTF-8"));
    json!(read).to_string()
}

#[test]
fn a_process_without_network_answers() {
    for make in makes() {
        let harness = start(&make.pool("sandbox = { network = false }"), &["puppet"]);
        assert_eq!(reply(&harness, &answers("alone")), "alone", "{make:?}");
    }
}

#[test]
fn a_process_of_another_user_without_files_and_network_answers() {
    // Where another user's programs can be run.
    if !geteuid().is_root() {
        return;
    }
    let folder = public(&["puppet"]);
    let command = std::process::Command::new(folder.path().join("puppet"));
    let settings = format!(
        "cwd = \"/\"\nsandbox = {{ user = \"nobody\", network = false, read = {} }}\nlimits = {{ open_files = 64 }}",
        read(folder.path())
    );
    let harness = start(&pool_with("puppet", &command, &[], &settings), &["puppet"]);
    assert_eq!(reply(&harness, &answers("alone")), "alone");
    // Its next call, too.
    let options = ["--timeout", "300ms"];
    fails(
        &harness,
        &json!({"do": "hang"}),
        "DEADLINE_EXCEEDED",
        &options,
    );
    assert_eq!(reply(&harness, &answers("and on")), "and on");
    let pid = super::pid(&harness);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let uid = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .expect("a user");
    assert!(!uid.split_whitespace().any(|id| id == "0"), "{uid}");
    assert_nothing_counted(&harness.pool("puppet"));
}
