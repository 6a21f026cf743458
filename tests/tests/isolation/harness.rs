//! What a worker may know of the harness, and do to it.

use std::fs;

use harness_server::supervisor::isolation::{Files, Isolation};
use harness_tests::guarded::{output, public, sh};

use crate::{breakout, is_root, isolated, system, told, user};

#[tokio::test]
async fn the_environment_of_the_harness_is_not_inherited() {
    // This process has one.
    assert!(std::env::vars().count() > 1);
    let mut with = breakout(["environment"]);
    with.env = vec![("ONLY".into(), "this".into())];
    assert_eq!(told(with).await, "done [(\"ONLY\", \"this\")]");
}

#[tokio::test]
async fn the_environment_of_harness_and_guardian_is_not_read() {
    let harness = format!("/proc/{}/environ", std::process::id());
    let denied = "refused Permission denied (os error 13)";
    let mut files = Files {
        read: system(),
        write: vec![],
    };
    // The kernel shows it to root wherever /proc may be read, and to nobody else in a sandbox.
    if !is_root() {
        files.read.push("/proc".into());
    }
    let landlocked = Isolation {
        files: Some(files),
        ..Isolation::default()
    };
    assert_eq!(
        told(isolated(["read", &harness], &landlocked)).await,
        denied
    );
    // The guardian has none of it, only what keeps its allocator to one thread.
    let (told_of_guardian, _) = output(sh("tr '\\0' '\\n' < /proc/$PPID/environ"))
        .await
        .expect("started");
    assert_eq!(
        told_of_guardian,
        "_RJEM_MALLOC_CONF=background_thread:false\n"
    );
    if is_root() {
        let folder = public(&["breakout"]);
        let mut other = breakout(["read", &harness]);
        other.command[0] = folder.path().join("breakout").into();
        other.isolation.user = Some(user(61_013));
        assert_eq!(told(other).await, denied);
    }
}

#[tokio::test]
async fn the_harness_is_not_killed_from_within() {
    let own = std::process::id().to_string();
    let denied = "refused Operation not permitted (os error 1)";
    let files = Isolation {
        files: Some(Files {
            read: system(),
            write: vec![],
        }),
        ..Isolation::default()
    };
    if landlock_scopes_signals() {
        assert_eq!(told(isolated(["kill", &own], &files)).await, denied);
    }
    if is_root() {
        let folder = public(&["breakout"]);
        let mut other = breakout(["kill", &own]);
        other.command[0] = folder.path().join("breakout").into();
        other.isolation.user = Some(user(61_014));
        assert_eq!(told(other).await, denied);
    }
}

/// Linux 6.12 and later.
fn landlock_scopes_signals() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|it| it.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}
