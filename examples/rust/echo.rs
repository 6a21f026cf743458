//! A worker whose agent, `echo`, answers with what it was asked.
//!
//! It takes and gives [`Payload`]: any bytes of any media type, passed as they came, no schema.

use std::error::Error;

use worker_sdk::{Agent, AgentError, Context, Payload, Worker};

struct Echo;

impl Agent for Echo {
    type Request = Payload;
    type Reply = Payload;

    async fn reply(&self, _ctx: Context, request: Payload) -> Result<Payload, AgentError> {
        Ok(request)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    // How many requests this process works on at once.
    let slots = std::env::var("HARNESS_SLOTS").map_or(Ok(1), |slots| slots.parse())?;
    Worker::builder(Echo)
        .name("echo")
        .description("answers with what it was asked")
        .slots(slots)
        // Connects to HARNESS_ADDRESS, else to 127.0.0.1:7070; waits for a harness that is away,
        // and leaves on Ctrl-C or SIGTERM when the requests in hand are finished.
        .run()
        .await?;
    Ok(())
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
