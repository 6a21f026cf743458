//! A worker whose agent, `echo`, answers with what it was asked.
//!
//! It takes and gives [`Payload`]: any bytes of any media type, passed as they came, no schema.

use worker_sdk::{Agent, AgentError, Context, Error, Payload, Worker};

struct Echo;

impl Agent for Echo {
    type Request = Payload;
    type Reply = Payload;

    async fn reply(&self, _ctx: Context, request: Payload) -> Result<Payload, AgentError> {
        Ok(request)
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Without this a standard error that nobody reads any more is a panic.
        .log_internal_errors(false)
        .init();
    Worker::builder(Echo)
        .name("echo")
        .description("answers with what it was asked")
        // Offers HARNESS_SLOTS slots, else 1: that many requests at once. Connects to
        // HARNESS_ADDRESS, else to 127.0.0.1:7070; waits for a harness that is away, and leaves on
        // Ctrl-C or SIGTERM when the requests in hand are finished.
        .run()
        .await
}

#[cfg(test)]
mod tests {
    use worker_sdk::testing;

    use super::*;

    #[tokio::test]
    async fn it_answers_with_what_it_was_asked() {
        let picture = Payload::new("image/png", vec![0x89, 0x50]);
        let (ctx, _) = testing::context().build();
        assert_eq!(Echo.reply(ctx, picture.clone()).await.unwrap(), picture);
    }
}
