//! A worker of the SDK for the crash test: five steps a run, each a line in the file that STEPS_LOG
//! names, and the request as the reply. The bare worker of that test does the same, so either goes
//! on with what the other has begun.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use harness_tests::step_log::{AGENT, STEPS, StepLog, VARIABLE, What};
use worker_sdk::{AgentError, Context, Payload, Worker, agent_fn};

async fn reply(ctx: Context, request: Payload, log: Arc<StepLog>) -> Result<Payload, AgentError> {
    let (run_id, attempt) = (ctx.run_id(), ctx.attempt());
    for at in 0..STEPS {
        let step = ctx.step(at.to_string(), |_| async {
            log.put(What::Ran, run_id, attempt, at);
            Ok(1_u32)
        });
        step.await?;
        log.put(What::Recorded, run_id, attempt, at);
    }
    Ok(request)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    harness_tests::log_to_stderr();
    let path = std::env::var_os(VARIABLE).ok_or("STEPS_LOG names no file")?;
    let log = Arc::new(StepLog::open(&PathBuf::from(path), "sdk"));
    let worker = Worker::builder(agent_fn(move |ctx, request| {
        reply(ctx, request, log.clone())
    }));
    worker
        .name(AGENT)
        .reconnect_waits(Duration::from_millis(10), Duration::from_millis(100))
        .run()
        .await?;
    Ok(())
}
