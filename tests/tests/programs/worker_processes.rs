//! One worker process through its guardian: started, heard, signalled, reaped.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::path::Path;

use harness_server::supervisor::process::{Exit, Guardian, Process, Signal, StartError};
use harness_tests::guarded::{exists, launch, output, sh};
use harness_tests::{BOUND, Process as Program, command, eventually, eventually_async, program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, what).await.expect("in time")
}

/// The next line of a stream.
async fn line(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut line = String::new();
    loop {
        match within(stream.read_u8()).await.expect("another byte") {
            b'\n' => return line,
            byte => line.push(char::from(byte)),
        }
    }
}

#[tokio::test]
async fn a_process_has_its_streams_and_says_how_it_ended() {
    let mut echo = sh("cat; echo of stderr >&2; exit 3");
    echo.stdin = true;
    let (mut process, mut streams) = within(Process::start(echo)).await.expect("started");
    let mut stdin = streams.stdin.take().expect("asked for");
    stdin.write_all(b"hello\n").await.expect("written");
    drop(stdin);
    assert_eq!(line(&mut streams.stdout).await, "hello");
    assert_eq!(line(&mut streams.stderr).await, "of stderr");
    assert_eq!(within(process.exited()).await, Exit::Code(3));
    assert_eq!(within(process.reaped()).await, Exit::Code(3));
    assert_eq!(within(process.exited()).await, Exit::Code(3));
}

#[tokio::test]
async fn a_command_that_ends_at_once_has_begun() {
    for _ in 0..20 {
        let (out, exit) = output(sh("echo so")).await.expect("started");
        assert_eq!((out.as_str(), exit), ("so\n", Exit::Code(0)));
    }
}

#[tokio::test]
async fn a_command_that_cannot_be_executed_is_named() {
    for (program, kind) in [
        ("no-such-program", std::io::ErrorKind::NotFound),
        ("/etc/passwd", std::io::ErrorKind::PermissionDenied),
    ] {
        let checked = launch([program]).check().await;
        for error in [checked, output(launch([program])).await.map(drop)] {
            let Err(StartError::Command { command, source }) = error else {
                panic!("{error:?}");
            };
            assert_eq!((command.as_str(), source.kind()), (program, kind));
        }
    }
}

#[tokio::test]
async fn a_folder_that_cannot_be_entered_is_named() {
    let mut nowhere = sh("pwd");
    nowhere.cwd = Some("/no/such/folder".into());
    let checked = nowhere.check().await;
    for error in [checked, output(nowhere).await.map(drop)] {
        let Err(StartError::Cwd { path, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(path, Path::new("/no/such/folder"));
    }
    let mut there = sh("pwd");
    there.cwd = Some("/usr".into());
    assert_eq!(output(there).await.expect("started").0, "/usr\n");
}

#[tokio::test]
async fn a_guardian_that_is_none_is_named() {
    let mut missing = sh("true");
    missing.guard = "/no/such/harness".into();
    let error = output(missing).await;
    assert!(matches!(&error, Err(StartError::Guard { path, .. }) if path.starts_with("/no/such")));
    let mut other = sh("true");
    other.guard = "/bin/true".into();
    let error = output(other).await.expect_err("refused").to_string();
    assert!(
        error.starts_with("the guardian /bin/true failed: it "),
        "{error}"
    );
}

#[tokio::test]
async fn a_launcher_stands_before_the_command() {
    let mut launched = launch(["echo", "hello"]);
    launched.isolation.launcher = vec!["env".into(), "-u".into(), "PATH".into()];
    let (out, exit) = output(launched).await.expect("started");
    assert_eq!((out.as_str(), exit), ("hello\n", Exit::Code(0)));
}

#[tokio::test]
async fn a_check_does_not_run_the_command() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let mut touch = launch(["touch", "ran"]);
    touch.cwd = Some(folder.path().to_owned());
    touch.check().await.expect("nothing wrong");
    assert!(!folder.path().join("ran").exists());
    assert_eq!(output(touch).await.expect("started").1, Exit::Code(0));
    assert!(folder.path().join("ran").exists());
}

#[tokio::test]
async fn sigterm_asks_the_whole_group_and_its_exit_code_counts() {
    let script = "trap 'echo parent; exit 7' TERM; \
                  sh -c 'trap \"echo child; exit\" TERM; echo ready; while :; do sleep 0.01; done' & \
                  while :; do sleep 0.01; done";
    let (mut process, mut streams) = within(Process::start(sh(script))).await.expect("started");
    assert_eq!(line(&mut streams.stdout).await, "ready");
    process.signal(Signal::Term);
    assert_eq!(within(process.exited()).await, Exit::Code(7));
    let mut said = String::new();
    within(streams.stdout.read_to_string(&mut said))
        .await
        .expect("read");
    assert!(said.contains("parent"), "{said}");
    assert_eq!(within(process.reaped()).await, Exit::Code(7));
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_killed_with_all_its_descendants() {
    let script = "trap '' TERM; sleep 1000 & echo $!; \
                  setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' & \
                  while :; do sleep 1000; done";
    let (mut process, mut streams) = within(Process::start(sh(script))).await.expect("started");
    let mut pids = vec![process.pid()];
    for _ in 0..3 {
        pids.push(
            line(&mut streams.stdout)
                .await
                .parse()
                .expect("a process id"),
        );
    }
    process.signal(Signal::Term);
    let still = tokio::time::timeout(std::time::Duration::from_millis(200), process.exited()).await;
    assert!(still.is_err(), "SIGTERM is ignored");
    process.signal(Signal::Kill);
    assert_eq!(within(process.exited()).await, Exit::Signal(9));
    assert_eq!(within(process.reaped()).await, Exit::Signal(9));
    assert_eq!(
        pids.iter().filter(|pid| exists(**pid)).count(),
        0,
        "{pids:?}"
    );
    // Nobody holds their end any more.
    let mut rest = String::new();
    within(streams.stdout.read_to_string(&mut rest))
        .await
        .expect("the end");
}

#[tokio::test]
async fn what_a_process_leaves_behind_is_killed_when_it_ends() {
    let script = "setsid sleep 1000 & echo $!; (sleep 1000 & echo $!) ; exit 5";
    let (mut process, mut streams) = within(Process::start(sh(script))).await.expect("started");
    let mut pids: Vec<u32> = Vec::new();
    for _ in 0..2 {
        pids.push(
            line(&mut streams.stdout)
                .await
                .parse()
                .expect("a process id"),
        );
    }
    assert_eq!(within(process.reaped()).await, Exit::Code(5));
    assert_eq!(
        pids.iter().filter(|pid| exists(**pid)).count(),
        0,
        "{pids:?}"
    );
}

#[tokio::test]
async fn a_daemon_that_dies_is_reaped_while_the_worker_runs() {
    let script = "(setsid sh -c 'echo $$' &); while :; do sleep 1000; done";
    let (process, mut streams) = within(Process::start(sh(script))).await.expect("started");
    let daemon = line(&mut streams.stdout)
        .await
        .parse()
        .expect("a process id");
    eventually_async("the daemon is reaped", BOUND, async || {
        (!exists(daemon)).then_some(())
    })
    .await;
    assert!(exists(process.pid()));
}

#[tokio::test]
async fn dropping_a_process_kills_all_of_it() {
    let script = "setsid sleep 1000 & echo $!; while :; do sleep 1000; done";
    let (process, mut streams) = within(Process::start(sh(script))).await.expect("started");
    let grandchild = line(&mut streams.stdout)
        .await
        .parse()
        .expect("a process id");
    let pid = process.pid();
    drop(process);
    eventually_async("all are gone", BOUND, async || {
        (!exists(pid) && !exists(grandchild)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let guard = folder.path().join("guard-given-up");
    harness_tests::guarded::link(&program("harness"), &guard);
    for micros in (0..5_000).step_by(250) {
        let mut sleep = sh("sleep 1000");
        sleep.guard = guard.clone();
        sleep.env.push(("MARK".into(), "given-up".into()));
        let patience = std::time::Duration::from_micros(micros);
        drop(tokio::time::timeout(patience, Process::start(sleep)).await);
    }
    eventually_async("all are gone", BOUND, async || {
        let left = harness_tests::guarded::marked("given-up", &guard);
        left.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_guardian_that_was_kept_ready_starts_a_process() {
    let launched = sh("echo hello");
    let guardian = Guardian::start(&launched.guard).expect("started");
    let (mut process, mut streams) = within(guardian.launch(launched)).await.expect("started");
    assert_eq!(line(&mut streams.stdout).await, "hello");
    assert_eq!(within(process.reaped()).await, Exit::Code(0));
}

#[tokio::test]
async fn a_large_environment_arrives_whole() {
    let mut large = sh("echo ${#BIG1} ${#BIG2} ${#BIG9}");
    for number in 0..10 {
        large
            .env
            .push((format!("BIG{number}").into(), "x".repeat(100_000).into()));
    }
    let (out, _) = output(large).await.expect("started");
    assert_eq!(out, "100000 100000 100000\n");
}

#[tokio::test]
async fn words_that_are_not_utf_8_arrive_as_they_are() {
    use std::os::unix::ffi::OsStringExt;
    let odd = std::ffi::OsString::from_vec(vec![b'a', 0xff, b'\n', b'b']);
    let mut command = launch(["printf", "%s"]);
    command.command.push(odd);
    command.command.extend(["|".into()]);
    let (mut process, mut streams) = within(Process::start(command)).await.expect("started");
    let mut out = Vec::new();
    within(streams.stdout.read_to_end(&mut out))
        .await
        .expect("read");
    assert_eq!(out, [b'a', 0xff, b'\n', b'b', b'|']);
    within(process.reaped()).await;
}

#[tokio::test]
async fn a_worker_whose_guardian_is_killed_dies_too() {
    let (mut process, _streams) = within(Process::start(launch(["sleep", "1000"])))
        .await
        .expect("started");
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("read");
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t"));
    let guardian: i32 = parent.expect("a parent").parse().expect("a process id");
    let guardian = nix::unistd::Pid::from_raw(guardian);
    nix::sys::signal::kill(guardian, nix::sys::signal::Signal::SIGKILL).expect("killed");
    assert_eq!(within(process.exited()).await, Exit::Unknown);
    assert_eq!(within(process.reaped()).await, Exit::Unknown);
    let pid = process.pid();
    eventually_async("the worker is gone", BOUND, async || {
        (!exists(pid)).then_some(())
    })
    .await;
}

#[test]
fn harness_guard_by_hand_says_who_starts_it() {
    for words in [&["guard"][..], &["guard", "me"]] {
        let mut guard = command("harness");
        guard.args(words);
        let done = Program::run("harness guard", guard);
        assert_eq!(done.code, Some(1), "{done}");
        assert!(done.stderr.contains("which a harness starts"), "{done}");
    }
}

#[test]
fn two_hundred_starts_leave_no_file_open_and_no_child() {
    let mut holder = command("holder");
    holder.args(["times", "200", "sh", "-c", "setsid sleep 1000 & exit 0"]);
    let done = Program::start("holder", holder).finish_within(BOUND * 3);
    assert_eq!(done.code, Some(0), "{done}");
    let idle: Vec<&str> = done
        .stdout
        .lines()
        .filter(|it| it.starts_with("idle"))
        .collect();
    assert_eq!(idle.len(), 200, "{done}");
    assert!(idle[0].ends_with(" 0"), "no child: {}", idle[0]);
    assert_eq!(idle[1..], vec![idle[1]; 199], "{done}");
}

#[test]
fn a_worker_has_its_three_streams_and_no_other_file() {
    // The harness was itself started with two files that nobody closed.
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", "exec 7</dev/null 8>/dev/null; exec \"$@\"", "bash"]);
    shell
        .arg(program("holder"))
        .args(["times", "1"])
        .arg(program("breakout"))
        .arg("files");
    let done = Program::run("holder", shell);
    assert!(done.stdout.contains("done 0 1 2\n"), "{done}");
}

#[test]
fn no_guardian_holds_the_socket_of_another() {
    let mut holder = command("holder");
    holder.args(["hold", "6", "sleep", "1000"]);
    let holder = Program::start("holder", holder);
    eventually("six workers run", BOUND, || {
        (holder.stdout().matches("started").count() == 6).then_some(())
    });
    let guardians = children(holder.pid());
    assert_eq!(guardians.len(), 6);
    let mut all: Vec<String> = Vec::new();
    for guardian in guardians {
        // Its standard input, and where it keeps it since.
        let sockets: BTreeSet<String> = sockets(guardian).into_iter().collect();
        assert_eq!(sockets.len(), 1, "one socket: {sockets:?}");
        all.extend(sockets);
    }
    let different: BTreeSet<&String> = all.iter().collect();
    assert_eq!(different.len(), 6, "each is in one guardian: {all:?}");
}

#[test]
fn a_guardian_has_one_thread() {
    let mut holder = command("holder");
    holder.args(["hold", "1", "sleep", "1000"]);
    let holder = Program::start("holder", holder);
    eventually("a worker runs", BOUND, || {
        holder.stdout().contains("started").then_some(())
    });
    let guardians = children(holder.pid());
    assert_eq!(guardians.len(), 1);
    let threads = std::fs::read_dir(format!("/proc/{}/task", guardians[0])).expect("listed");
    assert_eq!(threads.count(), 1);
}

/// The children of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("listed");
    let children = threads.flatten().flat_map(|thread| {
        let listed = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let pids = listed
            .split_whitespace()
            .map(|pid| pid.parse().expect("a pid"));
        pids.collect::<Vec<u32>>()
    });
    children.collect()
}

/// The sockets a process has open, by the numbers the system gives them.
fn sockets(pid: u32) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("listed");
    let to = files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    let names = to.map(|to| to.to_string_lossy().into_owned());
    names.filter(|to| to.starts_with("socket:")).collect()
}
