//! Steps of an interactive run, with a real harness: taken in memory, seen in the run's journal.

use harness_tests::raw::within;
use harness_tests::{BOUND, Harness as Server};
use tokio::task::JoinSet;
use worker_sdk::client::WatchEvent;
use worker_sdk::client::runs::{Content, Outcome};
use worker_sdk::journal::Usage;
use worker_sdk::{AgentError, Answer, Context, Harness, Worker, agent_fn};

async fn work(ctx: Context, number: u64) -> Result<u64, AgentError> {
    let doubled: u64 = ctx
        .step("double", |_| async {
            let usage = Usage {
                input_tokens: 3,
                ..Usage::default()
            };
            ctx.usage(usage).await?;
            Ok(number * 2)
        })
        .await?;
    let failed = ctx
        .step("fail", |_| async {
            Err::<u64, _>(AgentError::new("No", "no"))
        })
        .key("at-all")
        .side_effect()
        .await;
    assert!(failed.is_err());
    Ok(doubled)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_steps_of_an_interactive_run_are_in_its_journal() {
    let server = Server::start();
    let mut workers = JoinSet::new();
    let worker = Worker::builder(agent_fn(work)).name("steps");
    let worker = worker.connect(server.address()).build().expect("a worker");
    workers.spawn(worker.run_until(std::future::pending()));
    server.wait_for_ready("steps", 1);
    let harness = within(BOUND, Harness::connect(server.address()))
        .await
        .expect("it listens");
    let answer: Answer<u64> = harness.ask("steps", 21).await.expect("a reply");
    assert_eq!(answer.value, 42);

    let watching = harness.watch_run("", &answer.run_id);
    let mut events = watching.await.expect("the run is kept");
    let mut said = Vec::new();
    while let Some(event) = within(BOUND, events.next()).await {
        let WatchEvent::Entry(entry) = event.expect("an entry") else {
            panic!("an entry");
        };
        match entry.content {
            Content::Step {
                name,
                key,
                outcome,
                idempotency_key,
            } => said.push(match outcome {
                None if idempotency_key != format!("{}/{name}/{key}", answer.run_id) => {
                    format!("the key is {idempotency_key}")
                }
                None => format!("{name} {key} begun"),
                Some(Outcome::Value(value)) => {
                    let value: u64 = value.to_json().expect("a number");
                    format!("{name} {key} {value}")
                }
                Some(Outcome::Error(error)) => format!("{name} {key} {}", error.agent_type()),
            }),
            Content::Usage { input_tokens, .. } => said.push(format!("usage {input_tokens}")),
            _ => {}
        }
    }
    let expected = [
        "double 1 begun",
        "usage 3",
        "double 1 42",
        "fail at-all begun",
        "fail at-all No",
    ];
    assert_eq!(said, expected);
}
