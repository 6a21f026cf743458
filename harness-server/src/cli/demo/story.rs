//! What the demo shows and says. Every time it prints was read from this process's monotonic clock
//! when the thing happened or, for what happens in a worker process, when the worker's line about
//! it arrived here.

use std::time::{Duration, Instant};

use worker_sdk::client::admin::SlotState;
use worker_sdk::{Answer, ErrorKind, Harness};

use super::Stage;
use super::child::{Child, Event};
use crate::cli::error::CliError;
use crate::cli::output;

/// The timeout the hung agent is asked with.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How late a part may be.
const LATE: Duration = Duration::from_secs(1);
/// How long processes may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often slots are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What happened to the hung request, since it was asked.
struct Hung {
    called: Duration,
    answered: Duration,
    message: String,
    dropped: Duration,
    ready: Duration,
}

/// Plays and tells the whole story.
///
/// # Errors
/// Which part did not happen, or not in time.
pub(super) async fn tell(stage: &mut Stage) -> Result<(), CliError> {
    ready(stage).await?;
    let (echo, hang) = (stage.echo.pid(), stage.hang.pid());
    for line in [
        format!(
            "process {}: harness on {}",
            std::process::id(),
            stage.address
        ),
        format!("process {echo}: worker, offers agent echo"),
        format!("process {hang}: worker, offers agent hang, which never answers"),
        String::new(),
        "ask echo '\"hello\"'".to_owned(),
    ] {
        output::line(&line)?;
    }

    let start = Instant::now();
    let answer: Answer<String> = in_time("echo's answer", stage.harness.ask("echo", "hello"))
        .await?
        .map_err(|error| CliError::of_call(&stage.address, error))?;
    output::line(&format!(
        "  {}  answered: {}",
        clock(start.elapsed()),
        answer.value
    ))?;

    output::line("\nask hang --timeout 0.5s")?;
    let hung = hung(&stage.harness, &mut stage.hang).await?;
    let mut told = [
        (
            hung.called,
            format!("request is with process {hang}: reply was called"),
        ),
        (
            hung.answered,
            format!("deadline: caller answered:\n           {}", hung.message),
        ),
        (
            hung.dropped,
            format!("agent's future dropped in process {hang}"),
        ),
        (hung.ready, "slot READY again, same process".to_owned()),
    ];
    if let Some((at, what)) = told.iter().find(|(at, _)| *at > TIMEOUT + LATE) {
        return Err(CliError::Demo(format!(
            "{} is too late: {what}",
            clock(*at)
        )));
    }
    told.sort_by_key(|(at, _)| *at);
    for (at, what) in told {
        output::line(&format!("  {}  {what}", clock(at)))?;
    }
    Ok(())
}

/// Waits until both workers are there.
async fn ready(stage: &Stage) -> Result<(), CliError> {
    let both = async {
        for agent in ["echo", "hang"] {
            until_ready(&stage.harness, agent).await?;
        }
        Ok(())
    };
    match tokio::time::timeout(START_TIMEOUT, both).await {
        Ok(ready) => ready.map_err(|error| CliError::of_call(&stage.address, error)),
        Err(_) => Err(missing("both workers attach", START_TIMEOUT)),
    }
}

/// Asks the agent that hangs, and watches from three places at once.
async fn hung(harness: &Harness, worker: &mut Child) -> Result<Hung, CliError> {
    let start = Instant::now();
    let called_and_dropped = async {
        let called = moment(start, worker, Event::Called, LATE).await?;
        let dropped = moment(start, worker, Event::Dropped, TIMEOUT + LATE).await?;
        Ok::<_, CliError>((called, dropped))
    };
    let answered_and_ready = async {
        let ask = harness.ask::<String>("hang", ()).timeout(TIMEOUT);
        let asked = in_time("the caller's answer", ask).await?;
        let answered = start.elapsed();
        let message = match asked {
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => error.to_string(),
            Err(error) => return Err(CliError::of_call(&harness.address(), error)),
            Ok(_) => {
                return Err(CliError::Demo(
                    "the agent that hangs has answered".to_owned(),
                ));
            }
        };
        in_time("the slot's return", until_ready(harness, "hang"))
            .await?
            .map_err(|error| CliError::of_call(&harness.address(), error))?;
        Ok((answered, message, start.elapsed()))
    };
    let ((called, dropped), (answered, message, ready)) =
        tokio::try_join!(called_and_dropped, answered_and_ready)?;
    Ok(Hung {
        called,
        answered,
        message,
        dropped,
        ready,
    })
}

/// When the worker told of the event.
async fn moment(
    start: Instant,
    worker: &mut Child,
    expected: Event,
    bound: Duration,
) -> Result<Duration, CliError> {
    match tokio::time::timeout(bound, worker.event()).await {
        Ok(Ok(event)) if event == expected => Ok(start.elapsed()),
        Ok(Ok(event)) => Err(CliError::Demo(format!("agent hang: {event} out of turn"))),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(missing(
            &format!("agent hang: not told that {expected}"),
            bound,
        )),
    }
}

/// Waits until the agent has a READY slot and no cancelled work that still runs.
async fn until_ready(harness: &Harness, agent: &str) -> Result<(), worker_sdk::Error> {
    loop {
        let workers = harness.workers("", agent).await?;
        let is_ready = workers.iter().any(|worker| {
            let ready = worker
                .slots
                .iter()
                .any(|slot| slot.state == SlotState::Ready);
            ready && worker.unreleased.is_empty()
        });
        if is_ready {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn in_time<F: IntoFuture>(what: &str, part: F) -> Result<F::Output, CliError> {
    let bound = TIMEOUT + LATE;
    let part = tokio::time::timeout(bound, part);
    part.await.map_err(|_| missing(what, bound))
}

fn missing(what: &str, bound: Duration) -> CliError {
    CliError::Demo(format!("not within {bound:?}: {what}"))
}

/// Seconds with their milliseconds.
fn clock(since: Duration) -> String {
    format!("{:.3} s", since.as_secs_f64())
}
