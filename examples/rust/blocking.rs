//! A worker whose agent, `blocking`, is ordinary code that keeps its thread busy.
//!
//! Each request gets a thread of its own. A thread cannot be stopped from outside: the code looks
//! at `is_cancelled` now and then. Until it has returned its slot takes no other request.

use std::thread::sleep;
use std::time::Duration;

use worker_sdk::{AgentError, BlockingAgent, BlockingContext, Error, Worker, blocking};

/// Sleeps for as many milliseconds as it is asked to, in short steps.
struct Sleep;

const STEP: Duration = Duration::from_millis(10);

impl BlockingAgent for Sleep {
    type Request = u64;
    type Reply = String;

    fn reply(&self, ctx: BlockingContext, milliseconds: u64) -> Result<String, AgentError> {
        let mut left = Duration::from_millis(milliseconds);
        while !left.is_zero() {
            if ctx.is_cancelled() {
                // Nobody waits for an answer any more; returning gives the slot back.
                return Err(AgentError::new("Cancelled", "stopped before the end"));
            }
            let step = left.min(STEP);
            sleep(step);
            left -= step;
        }
        Ok(format!("slept {milliseconds} ms"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Without this a standard error that nobody reads any more is a panic.
        .log_internal_errors(false)
        .init();
    Worker::builder(blocking(Sleep))
        .name("blocking")
        .description("blocks its thread for so many ms")
        .run()
        .await
}

#[cfg(test)]
mod tests {
    use worker_sdk::context::CancelReason;
    use worker_sdk::{Agent, testing};

    use super::*;

    #[tokio::test]
    async fn it_sleeps_until_it_is_cancelled() {
        let agent = blocking(Sleep);
        let reply = testing::run(&agent, 20).await.unwrap();
        assert_eq!(reply, "slept 20 ms");

        let (ctx, record) = testing::context().build();
        record.cancel(CancelReason::Cancelled);
        let error = agent.reply(ctx, 60_000).await.unwrap_err();
        assert_eq!(error.error_type(), "Cancelled");
    }
}
