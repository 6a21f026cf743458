//! What the demo shows and says. Every time it prints was read from this process's monotonic clock
//! when the thing happened here, or was seen to have happened in the worker process.

use std::time::{Duration, Instant};

use harness_server::pool::{PhaseView, ProcessView, StopView};
use harness_server::supervisor;
use worker_sdk::client::admin::SlotState;
use worker_sdk::{Answer, ErrorKind, Harness};

use super::{CANCEL_GRACE, ECHO, HANG, RESEARCH, Stage, TERM_GRACE, tools};
use crate::cli::error::CliError;
use crate::cli::output;

/// The timeout the hung agent is asked with.
const TIMEOUT: Duration = Duration::from_millis(500);
/// How late a part may be.
const LATE: Duration = Duration::from_secs(2);
/// How long processes may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// How often pools and slots are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What happened to the hung request and its process, since it was asked.
struct Hung {
    begun: Duration,
    answered: Duration,
    message: String,
    terminated: Duration,
    killed: Duration,
    reaped: Duration,
    replaced: Duration,
    replacement: u32,
}

/// Plays and tells the whole story.
///
/// # Errors
/// Which part did not happen, or not in time.
pub(super) async fn tell(stage: &Stage) -> Result<(), CliError> {
    let [echo, research, hang] = ready(stage).await?;
    for line in [
        format!(
            "process {}: harness on {}",
            std::process::id(),
            stage.address
        ),
        format!("process {echo}: pool of one, agent echo"),
        format!(
            "process {research}: pool of one, agent research: a script in a model's place, and tools"
        ),
        format!("process {hang}: pool of one, agent hang, which never answers"),
        String::new(),
        "ask echo '\"hello\"'".to_owned(),
    ] {
        output::line(&line)?;
    }

    let start = Instant::now();
    let answer: Answer<String> = in_time("echo's answer", stage.harness.ask(ECHO, "hello"))
        .await?
        .map_err(|error| CliError::of_call(&stage.address, error))?;
    output::line(&format!(
        "  {}  answered: {}",
        clock(start.elapsed()),
        answer.value
    ))?;

    in_time("what research tells", tools::tell(stage)).await??;

    output::line("\nask hang --timeout 0.5s")?;
    for (at, what) in told(hang, hung(stage).await?)? {
        output::line(&format!("  {}  {what}", clock(at)))?;
    }
    Ok(())
}

/// What is told of the hung request, in the order of its times.
///
/// # Errors
/// A part that came too late.
fn told(process: u32, hung: Hung) -> Result<Vec<(Duration, String)>, CliError> {
    let parts = [
        (
            hung.begun,
            Duration::ZERO,
            format!("request is with process {process}"),
        ),
        (
            hung.answered,
            TIMEOUT,
            format!("deadline: caller answered:\n           {}", hung.message),
        ),
        (
            hung.terminated,
            TIMEOUT + CANCEL_GRACE,
            format!("it has not let go within {CANCEL_GRACE:?}: SIGTERM to process {process}"),
        ),
        (
            hung.killed,
            TIMEOUT + CANCEL_GRACE + TERM_GRACE,
            format!("it has not ended within {TERM_GRACE:?}: SIGKILL to all that is below it"),
        ),
        (
            hung.reaped,
            TIMEOUT + CANCEL_GRACE + TERM_GRACE,
            format!("nothing of process {process} is left"),
        ),
        (
            hung.replaced,
            TIMEOUT + CANCEL_GRACE + TERM_GRACE,
            format!(
                "slot READY again, process {} in its place",
                hung.replacement
            ),
        ),
    ];
    if let Some((at, _, what)) = parts.iter().find(|(at, due, _)| *at > *due + LATE) {
        return Err(CliError::Demo(format!(
            "{} is too late: {what}",
            clock(*at)
        )));
    }
    let mut told = parts.map(|(at, _, what)| (at, what));
    told.sort_by_key(|(at, _)| *at);
    Ok(told.into())
}

/// Waits until every worker is there; gives their process ids.
async fn ready(stage: &Stage) -> Result<[u32; 3], CliError> {
    let all = async {
        loop {
            if let (Some(echo), Some(research), Some(hang)) = (
                ready_process(&stage.pools, ECHO).await,
                ready_process(&stage.pools, RESEARCH).await,
                ready_process(&stage.pools, HANG).await,
            ) {
                return [echo, research, hang];
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    let all = tokio::time::timeout(START_TIMEOUT, all).await;
    all.map_err(|_| missing("all workers attach", START_TIMEOUT))
}

/// Asks the agent that hangs, and watches what becomes of it.
async fn hung(stage: &Stage) -> Result<Hung, CliError> {
    let failed = |error| CliError::of_call(&stage.address, error);
    let start = Instant::now();
    let begun = async {
        in_time("the request in work", until_busy(&stage.harness))
            .await?
            .map_err(failed)?;
        Ok::<_, CliError>(start.elapsed())
    };
    let answered = async {
        let ask = stage.harness.ask::<String>(HANG, ()).timeout(TIMEOUT);
        match in_time("the caller's answer", ask).await? {
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                Ok((start.elapsed(), error.to_string()))
            }
            Err(error) => Err(failed(error)),
            Ok(_) => Err(CliError::Demo(
                "the agent that hangs has answered".to_owned(),
            )),
        }
    };
    let (begun, (answered, message)) = tokio::try_join!(begun, answered)?;
    let (stop, replacement) = in_time("the process's replacement", replaced(&stage.pools)).await?;
    let at = |after: Option<Duration>| {
        let after = after.ok_or_else(|| CliError::Demo("a rung was left out".to_owned()))?;
        Ok::<_, CliError>((stop.began + after).saturating_duration_since(start))
    };
    Ok(Hung {
        begun,
        answered,
        message,
        terminated: at(stop.terminated_after)?,
        killed: at(stop.killed_after)?,
        reaped: at(Some(stop.reaped_after))?,
        replaced: at(stop.replaced_after)?,
        replacement,
    })
}

/// The process id of a pool's process that is ready, once there is one.
async fn ready_process(pools: &supervisor::Handle, agent: &str) -> Option<u32> {
    let views = pools.list().await;
    let view = views.iter().find(|view| &*view.agent.name == agent)?;
    let is_ready = |process: &&ProcessView| process.phase == PhaseView::Ready;
    view.pool.processes.iter().find(is_ready)?.pid
}

/// Waits until a process of the hanging agent was ended and another one is ready.
async fn replaced(pools: &supervisor::Handle) -> (StopView, u32) {
    loop {
        let ready = ready_process(pools, HANG).await;
        let views = pools.list().await;
        let view = views.iter().find(|view| &*view.agent.name == HANG);
        let stop = view.and_then(|view| view.pool.stops.last());
        if let (Some(stop), Some(ready)) = (stop, ready)
            && stop.replaced_after.is_some()
        {
            return (stop.clone(), ready);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the agent that hangs has a slot with a request.
async fn until_busy(harness: &Harness) -> Result<(), worker_sdk::Error> {
    loop {
        let workers = harness.workers("", HANG).await?;
        let mut slots = workers.iter().flat_map(|worker| &worker.slots);
        if slots.any(|slot| slot.state == SlotState::Busy) {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn in_time<F: IntoFuture>(what: &str, part: F) -> Result<F::Output, CliError> {
    let bound = TIMEOUT + CANCEL_GRACE + TERM_GRACE + LATE;
    let part = tokio::time::timeout(bound, part);
    part.await.map_err(|_| missing(what, bound))
}

fn missing(what: &str, bound: Duration) -> CliError {
    CliError::Demo(format!("not within {bound:?}: {what}"))
}

/// Seconds with their milliseconds.
pub(super) fn clock(since: Duration) -> String {
    format!("{:.3} s", since.as_secs_f64())
}
