//! A stand-in for a harness: it holds worker processes and nothing else, so that it can be killed.
//!
//! `holder hold COUNT COMMAND...` keeps so many running, and starts each again when it has ended;
//! `holder times COUNT COMMAND...` starts one after the other and leaves. Each start is a line
//! `started PID`; what the workers write follows as it is; when none runs, `holder times` tells its
//! own open files and children: `idle FILES CHILDREN`. HOLDER_ISOLATION is an isolation as JSON;
//! HOLDER_MARK is handed to the workers, so that their processes can be found. A refusal is told
//! as `refused: WHY` and ends it.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use harness_server::supervisor::isolation::Isolation;
use harness_server::supervisor::process::{Launch, Process};
use harness_tests::{BOUND, program};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

#[expect(clippy::print_stdout, reason = "what this program is for")]
fn say(line: &str) {
    println!("{line}");
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mode = arguments.next().expect("hold or times");
    let count = arguments.next().expect("a count");
    let count: usize = count.to_str().expect("UTF-8").parse().expect("a number");
    let launch = launch(arguments.collect());
    let held = if mode == "hold" {
        hold(count, &launch).await
    } else {
        times(count, &launch).await
    };
    let Err(error) = held else {
        return ExitCode::SUCCESS;
    };
    say(&format!("refused: {error}"));
    ExitCode::FAILURE
}

fn launch(command: Vec<OsString>) -> Launch {
    let isolation = match std::env::var("HOLDER_ISOLATION") {
        Ok(json) => serde_json::from_str(&json).expect("an isolation"),
        Err(_) => Isolation::default(),
    };
    let mut env: Vec<(OsString, OsString)> = vec![("PATH".into(), "/usr/bin:/bin".into())];
    env.extend(std::env::var_os("HOLDER_MARK").map(|mark| ("MARK".into(), mark)));
    let guard = std::env::var_os("HOLDER_GUARD");
    Launch {
        command,
        cwd: None,
        env,
        isolation,
        guard: guard.map_or_else(|| program("harness"), Into::into),
        stdin: false,
    }
}

async fn hold(count: usize, launch: &Launch) -> Result<(), String> {
    let mut workers = JoinSet::new();
    for _ in 0..count {
        let launch = launch.clone();
        workers.spawn(async move {
            loop {
                once(&launch).await?;
            }
        });
    }
    workers
        .join_next()
        .await
        .expect("some worker")
        .expect("no panic")
}

async fn times(count: usize, launch: &Launch) -> Result<(), String> {
    for _ in 0..count {
        once(launch).await?;
        let files = std::fs::read_dir("/proc/self/fd").expect("listed").count();
        say(&format!("idle {files} {}", children()));
    }
    Ok(())
}

/// The children of all of this process's threads, the dead included.
fn children() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").expect("listed");
    let children = threads.map(|thread| {
        let file = thread.expect("a thread").path().join("children");
        std::fs::read_to_string(file).unwrap_or_default()
    });
    children.map(|pids| pids.split_whitespace().count()).sum()
}

async fn once(launch: &Launch) -> Result<(), String> {
    let started = Process::start(launch.clone()).await;
    let (mut process, mut streams) = started.map_err(|error| error.to_string())?;
    say(&format!("started {}", process.pid()));
    let mut output = String::new();
    let read = streams.stdout.read_to_string(&mut output);
    // What hangs is found by who killed this.
    let _ = tokio::time::timeout(BOUND + Duration::from_secs(60), read).await;
    process.reaped().await;
    for line in output.lines() {
        say(line);
    }
    Ok(())
}
