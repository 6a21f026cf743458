//! A worker whose agent, `trip`, works in steps: each is recorded in the run's journal, and whoever
//! gets the run after a crash does not do it again.
//!
//! The two services it calls are stand-ins that take a moment.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use worker_sdk::{Agent, AgentError, Context, Error, StepError, Worker};

/// What is asked.
#[derive(Debug, Deserialize, JsonSchema)]
struct Trip {
    /// Where to.
    city: String,
    /// What it may cost, in cents.
    cents: u64,
}

/// What is answered.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Booked {
    room: String,
    receipt: String,
}

struct Book;

impl Agent for Book {
    type Request = Trip;
    type Reply = Booked;

    async fn reply(&self, ctx: Context, trip: Trip) -> Result<Booked, AgentError> {
        // Under the same key, reserving twice is reserving once: this step may run again.
        let room: String = ctx.step("reserve", |key| reserve(trip.city, key)).await?;
        // This one must not. When nobody knows whether it happened, a person looks.
        let paid = ctx
            .step("pay", |key| pay(trip.cents, key))
            .side_effect()
            .await;
        let receipt: String = match paid {
            Err(StepError::OutcomeUnknown {
                idempotency_key, ..
            }) => {
                let message = format!("look at the bank for {idempotency_key}");
                return Err(AgentError::new("PaymentUnknown", message));
            }
            paid => paid?,
        };
        Ok(Booked { room, receipt })
    }
}

async fn reserve(city: String, key: String) -> Result<String, AgentError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(format!("a room in {city}, reserved as {key}"))
}

async fn pay(cents: u64, key: String) -> Result<String, AgentError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(format!("{cents} cents, paid as {key}"))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Without this a standard error that nobody reads any more is a panic.
        .log_internal_errors(false)
        .init();
    Worker::builder(Book)
        .name("trip")
        .description("books a trip, in steps")
        .run()
        .await
}

#[cfg(test)]
mod tests {
    use worker_sdk::journal::Memory;
    use worker_sdk::testing;

    use super::*;

    fn trip() -> Trip {
        Trip {
            city: "Oslo".to_owned(),
            cents: 900,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_crash_before_a_write_pays_at_most_once() {
        // It writes the begin and the result of each of its two steps.
        for (write, expected) in [
            (1, "Oslo"),
            (2, "Oslo"),
            (3, "Oslo"),
            (4, "look at the bank"),
        ] {
            let journal = Memory::new();
            let first = testing::context().journal(journal.clone());
            let (ctx, record) = first.crash_at(write).build();
            tokio::select! {
                reply = Book.reply(ctx, trip()) => panic!("it crashes, not {reply:?}"),
                () = record.crashed() => {}
            }
            let (ctx, _) = testing::context().attempt(2).journal(journal).build();
            let text = match Book.reply(ctx, trip()).await {
                Ok(booked) => booked.room,
                Err(error) => error.message().to_owned(),
            };
            assert!(text.contains(expected), "crashed at {write}: {text}");
        }
    }
}
