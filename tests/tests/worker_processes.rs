//! One worker process through its guardian: started, heard, signalled, reaped.

use harness_server::supervisor::isolation::Isolation;
use harness_server::supervisor::process::{Exit, Launch, Process, Signal, StartError};
use harness_tests::{BOUND, program};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A command with nothing but a PATH.
fn launch<const N: usize>(command: [&str; N]) -> Launch {
    Launch {
        command: command.iter().map(Into::into).collect(),
        cwd: None,
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        isolation: Isolation::default(),
        guard: program("harness"),
        stdin: false,
    }
}

fn sh(script: &str) -> Launch {
    launch(["sh", "-c", script])
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, what).await.expect("in time")
}

#[tokio::test]
async fn a_process_has_its_streams_and_says_how_it_ended() {
    let mut echo = sh("cat; echo of stderr >&2; exit 3");
    echo.stdin = true;
    let (mut process, mut streams) = within(Process::start(echo)).await.expect("started");
    let mut stdin = streams.stdin.take().expect("asked for");
    stdin.write_all(b"hello\n").await.expect("written");
    drop(stdin);
    let (mut stdout, mut stderr) = (String::new(), String::new());
    within(streams.stdout.read_to_string(&mut stdout))
        .await
        .expect("read");
    within(streams.stderr.read_to_string(&mut stderr))
        .await
        .expect("read");
    assert_eq!(
        (stdout.as_str(), stderr.as_str()),
        ("hello\n", "of stderr\n")
    );
    assert_eq!(within(process.exited()).await, Exit::Code(3));
    assert_eq!(within(process.reaped()).await, Exit::Code(3));
}

#[tokio::test]
async fn a_command_that_is_not_there_is_named() {
    let error = within(Process::start(launch(["no-such-program"]))).await;
    let Err(StartError::Command { command, source }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(command, "no-such-program");
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn sigterm_asks_and_sigkill_ends() {
    let (mut process, _streams) = within(Process::start(launch(["sleep", "1000"])))
        .await
        .expect("started");
    process.signal(Signal::Term);
    assert_eq!(within(process.reaped()).await, Exit::Signal(15));
    let (mut process, mut streams) = within(Process::start(sh(
        "trap '' TERM; echo; while :; do sleep 1000; done",
    )))
    .await
    .expect("started");
    within(streams.stdout.read_u8())
        .await
        .expect("the trap is set");
    process.signal(Signal::Term);
    process.signal(Signal::Kill);
    assert_eq!(within(process.reaped()).await, Exit::Signal(9));
}
