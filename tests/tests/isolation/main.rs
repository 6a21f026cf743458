//! Each kind of isolation against an agent that tries to break out of it; and what cannot be
//! given here is refused, naming the setting.
#![cfg(target_os = "linux")]

mod files;
mod harness;
mod limits;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness_server::supervisor::isolation::{Files, Isolation, IsolationError, User};
use harness_server::supervisor::process::{Exit, Launch, StartError};
use harness_tests::guarded::{launch, link, output, public, sh};
use harness_tests::{Process as Program, program};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// A user that no system has, for one test each: the kernel counts the processes of a user.
fn user(uid: u32) -> User {
    User {
        name: format!("nobody {uid}"),
        uid,
        gid: uid,
        groups: vec![uid],
    }
}

fn breakout<const N: usize>(way: [&str; N]) -> Launch {
    let program = program("breakout").into_os_string();
    let ways = way.into_iter().map(Into::into);
    launch(std::iter::once(program).chain(ways))
}

/// The isolation in question, its default beside it.
fn isolated<const N: usize>(way: [&str; N], isolation: &Isolation) -> Launch {
    let mut launch = breakout(way);
    launch.isolation = isolation.clone();
    launch
}

/// What the agent says about how it went.
async fn told(launch: Launch) -> String {
    let (told, exit) = output(launch).await.expect("started");
    assert_eq!(exit, Exit::Code(0), "{told}");
    told.trim_end().to_owned()
}

#[track_caller]
fn refusal<T: std::fmt::Debug>(started: Result<T, StartError>, setting: &str) -> String {
    match started {
        Err(StartError::Isolation(IsolationError {
            setting: named,
            reason,
        })) if named == setting => reason,
        other => panic!("{setting} must be refused: {other:?}"),
    }
}

/// Both ways to be refused something.
async fn refused(isolation: Isolation, setting: &str) -> String {
    let mut launch = sh("true");
    launch.isolation = isolation;
    let checked = refusal(launch.check().await, setting);
    let started = refusal(output(launch).await, setting);
    assert_eq!(checked, started);
    started
}

fn is_root() -> bool {
    geteuid().is_root()
}

/// The folders that programs need to run, and the agent's own.
fn system() -> Vec<PathBuf> {
    let folders = ["/usr", "/bin", "/lib", "/lib64"].map(Path::new);
    let mut read: Vec<_> = folders
        .into_iter()
        .filter(|it| it.exists())
        .map(Into::into)
        .collect();
    read.push(program("breakout"));
    read
}

#[tokio::test]
async fn without_network_no_address_is_reached_but_the_harness_is() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("bound").to_string();
    let folder = TempDir::new().expect("a folder");
    let socket = folder.path().join("harness.sock");
    let _unix = UnixListener::bind(&socket).expect("bound");
    let socket = socket.display().to_string();
    assert_eq!(told(breakout(["connect", &address])).await, "done");
    let alone = Isolation {
        network: false,
        ..Isolation::default()
    };
    if let Err(error) = output(isolated(["environment"], &alone)).await {
        // Not root, and user namespaces are not for everybody here.
        assert!(refusal(Err::<(), _>(error), "sandbox.network").contains("it needs root"));
        return;
    }
    let unreachable = "refused Network is unreachable (os error 101)";
    assert_eq!(
        told(isolated(["connect", &address], &alone)).await,
        unreachable
    );
    assert_eq!(told(isolated(["unix", &socket], &alone)).await, "done");
}

#[tokio::test]
async fn a_process_runs_as_its_user_and_keeps_nothing_of_root() {
    let isolation = |user| Isolation {
        user: Some(user),
        ..Isolation::default()
    };
    if !is_root() {
        let reason = refused(isolation(user(61_012)), "sandbox.user").await;
        assert!(reason.starts_with("only root can become"), "{reason}");
        return;
    }
    let mut who = sh(
        "id -u; id -g; id -G; grep -E 'Cap(Prm|Eff|Inh|Amb)|NoNewPrivs' /proc/self/status; \
         echo to stdout >/dev/stdout; cat /etc/shadow 2>&1",
    );
    who.isolation = isolation(user(61_012));
    let (told, _) = output(who).await.expect("started");
    let mut lines = told.lines();
    let ids: Vec<&str> = lines.by_ref().take(3).collect();
    assert_eq!(ids, ["61012", "61012", "61012"], "{told}");
    for line in lines.by_ref().take(5) {
        let nothing = line.ends_with("0000000000000000") || line == "NoNewPrivs:\t1";
        assert!(nothing, "{told}");
    }
    assert_eq!(lines.next(), Some("to stdout"), "{told}");
    assert!(
        lines
            .next()
            .is_some_and(|it| it.contains("Permission denied")),
        "{told}"
    );
}

#[tokio::test]
async fn a_check_looks_for_the_command_as_the_process_would() {
    let mut read = system();
    read.pop();
    let files = Isolation {
        files: Some(Files {
            read,
            write: vec![],
        }),
        ..Isolation::default()
    };
    let mut cases = vec![isolated(["environment"], &files)];
    let folder = TempDir::new().expect("a folder");
    let shut = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.path(), shut).expect("a mode");
    if is_root() {
        link(&program("breakout"), &folder.path().join("breakout"));
        let mut other = breakout(["environment"]);
        other.command[0] = folder.path().join("breakout").into();
        other.check().await.expect("root can");
        other.isolation.user = Some(user(61_016));
        cases.push(other);
    }
    for launch in cases {
        for tried in [launch.check().await, output(launch).await.map(drop)] {
            let Err(StartError::Command { command, source }) = tried else {
                panic!("{tried:?}");
            };
            assert!(command.ends_with("breakout"), "{command}");
            assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
        }
    }
}

#[test]
fn a_user_is_looked_up_with_its_groups() {
    let root = User::named("root").expect("every system has it");
    assert_eq!((root.uid, root.gid), (0, 0));
    assert!(root.groups.contains(&0));
    let error = User::named("no such user").expect_err("refused");
    assert_eq!(
        error.to_string(),
        "sandbox.user cannot be given here: there is no user no such user"
    );
}

#[test]
fn a_user_that_cannot_be_given_is_named_before_the_socket_it_could_not_reach() {
    if !is_root() {
        return;
    }
    let folder = public(&["harness"]);
    let file = folder.path().join("harness.toml");
    let pool = "[[pool]]\nagent = \"a\"\ncommand = [\"true\"]\nsandbox = { user = \"daemon\" }";
    std::fs::write(&file, pool).expect("written");
    let mut check = std::process::Command::new("setpriv");
    check
        .args(["--reuid=61015", "--regid=61015", "--clear-groups"])
        .arg(folder.path().join("harness"))
        .arg("check")
        .arg(file);
    let done = Program::run("harness check", check);
    assert_eq!(done.code, Some(2), "{done}");
    let part = "sandbox.user cannot be given here: only root";
    assert!(done.stderr.contains(part), "{done}");
}

#[test]
fn a_harness_that_is_not_root_is_told_what_it_cannot_give() {
    if !is_root() {
        return;
    }
    // A harness as another user: held by `setpriv`, as a service would be.
    let folder = public(&["harness", "holder", "breakout"]);
    let as_another = || {
        let mut other = std::process::Command::new("setpriv");
        other.args(["--reuid=61015", "--regid=61015", "--clear-groups"]);
        other
    };
    let held = |isolation: &Isolation| {
        let mut holder = as_another();
        holder
            .arg(folder.path().join("holder"))
            .args(["times", "1"])
            .arg(folder.path().join("breakout"))
            .args(["connect", "127.0.0.1:9"])
            .env("HOLDER_GUARD", folder.path().join("harness"))
            .env(
                "HOLDER_ISOLATION",
                serde_json::to_string(isolation).expect("JSON"),
            );
        Program::run("holder", holder)
    };
    let other = Isolation {
        user: Some(user(61_016)),
        ..Isolation::default()
    };
    let done = held(&other);
    assert!(
        done.stdout
            .contains("refused: sandbox.user cannot be given here: only root"),
        "{done}"
    );
    let own = Isolation {
        user: Some(user(61_015)),
        processes: Some(50),
        ..Isolation::default()
    };
    let done = held(&own);
    assert!(done.stdout.contains("refused Connection refused"), "{done}");
    let alone = Isolation {
        network: false,
        ..Isolation::default()
    };
    let done = held(&alone);
    // What the system gives to every other program.
    let mut unshare = as_another();
    unshare.args(["unshare", "--user", "--net", "true"]);
    let told = match Program::run("unshare", unshare).code {
        Some(0) => "refused Network is unreachable",
        _ => "refused: sandbox.network cannot be given here",
    };
    assert!(done.stdout.contains(told), "{done}");
    let more = Isolation {
        open_files: Some(1 << 40),
        ..Isolation::default()
    };
    let done = held(&more);
    assert!(
        done.stdout
            .contains("limits.open_files cannot be given here"),
        "{done}"
    );
}

#[tokio::test]
async fn all_of_it_together_is_given() {
    if !is_root() {
        return;
    }
    let folder = public(&["breakout"]);
    let program = folder.path().join("breakout");
    let mut read = system();
    read.push(folder.path().to_owned());
    let all = Isolation {
        user: Some(user(61_017)),
        files: Some(Files {
            read,
            write: vec![],
        }),
        network: false,
        memory: None,
        memory_address_space: Some(1 << 30),
        open_files: Some(64),
        processes: Some(8),
        cpu_time: Some(Duration::from_secs(5)),
        launcher: vec!["env".into(), "WITH=launcher".into()],
    };
    let mut launch = isolated(["environment"], &all);
    launch.command[0] = program.into();
    let went = told(launch).await;
    assert!(went.contains("(\"WITH\", \"launcher\")"), "{went}");
}
