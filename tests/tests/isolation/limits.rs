//! More of something than is allowed.

use std::time::Duration;

use harness_server::supervisor::isolation::Isolation;
use harness_server::supervisor::process::Exit;
use harness_tests::guarded::{output, public, sh};

use crate::{is_root, isolated, refused, told, user};

#[tokio::test]
async fn open_files_end_at_the_limit() {
    let few = Isolation {
        open_files: Some(32),
        ..Isolation::default()
    };
    let went = told(isolated(["open", "100"], &few)).await;
    assert!(
        went.starts_with("refused after 2") && went.contains("Too many open files"),
        "{went}"
    );
    let none = Isolation {
        open_files: Some(3),
        ..Isolation::default()
    };
    assert_eq!(
        refused(none, "limits.open_files").await,
        "it must be at least 16"
    );
}

#[tokio::test]
async fn address_space_ends_at_the_limit() {
    let tight = Isolation {
        memory_address_space: Some(256 << 20),
        ..Isolation::default()
    };
    let bytes = (512_u64 << 20).to_string();
    assert_eq!(
        told(isolated(["allocate", "1048576"], &tight)).await,
        "done 1048576"
    );
    let went = told(isolated(["allocate", &bytes], &tight)).await;
    assert!(
        went.starts_with("refused memory allocation failed"),
        "{went}"
    );
}

#[tokio::test]
async fn processor_time_ends_at_the_limit() {
    let short = Isolation {
        cpu_time: Some(Duration::from_millis(300)),
        ..Isolation::default()
    };
    let (_, exit) = output(isolated(["spin"], &short)).await.expect("started");
    assert_eq!(exit, Exit::Signal(24), "SIGXCPU");
}

#[tokio::test]
async fn processes_end_at_the_limit() {
    let limit = Isolation {
        processes: Some(20),
        ..Isolation::default()
    };
    // Neither a cgroup with the controller nor a user: refused, unless the cgroup is there.
    let mut launch = sh("true");
    launch.isolation = limit.clone();
    let has_cgroup = launch.check().await.is_ok();
    if !has_cgroup {
        let reason = refused(limit.clone(), "limits.processes").await;
        assert!(
            reason.contains("cgroup") && reason.contains("sandbox.user"),
            "{reason}"
        );
    }
    if !is_root() {
        return;
    }
    let folder = public(&["breakout"]);
    let mut bomb = isolated(["spawn", "100"], &limit);
    bomb.command[0] = folder.path().join("breakout").into();
    bomb.isolation.user = Some(user(61_011));
    let went = told(bomb).await;
    assert!(
        went.starts_with("refused after 19: Resource temporarily unavailable"),
        "{went}"
    );
    if !has_cgroup {
        let root = Isolation {
            user: Some(user(0)),
            ..limit
        };
        refused(root, "limits.processes").await;
    }
}

#[tokio::test]
async fn memory_is_kept_by_a_cgroup_or_refused() {
    let limit = Isolation {
        memory: Some(64 << 20),
        ..Isolation::default()
    };
    let mut launch = sh("true");
    launch.isolation = limit.clone();
    if launch.check().await.is_err() {
        let reason = refused(limit, "limits.memory").await;
        assert!(reason.contains("cgroup"), "{reason}");
        assert!(
            reason.ends_with("limits.memory_address_space needs no cgroup"),
            "{reason}"
        );
        return;
    }
    let bytes = (256_u64 << 20).to_string();
    let (_, exit) = output(isolated(["allocate", &bytes], &limit))
        .await
        .expect("started");
    assert_eq!(exit, Exit::Signal(9));
}
