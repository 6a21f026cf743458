//! So many asks at once, each answered: with as many as there are slots, every slot answers one, as
//! the slot that is free longest comes first.

use std::future::IntoFuture;

use tokio::task::JoinSet;
use worker_sdk::{Answer, Error, Harness, Payload};

/// Asks over so many connections, and ends when all are answered.
pub(crate) async fn run(address: String, asks: usize, connections: usize) {
    let mut asking: JoinSet<Result<Answer<Payload>, Error>> = JoinSet::new();
    for at in 0..connections {
        let harness = Harness::connect(&address).await.expect("a harness");
        let mut left = asks / connections + usize::from(at < asks % connections);
        while left > 0 {
            let many = harness.ask_many().await.expect("an open call");
            let taken = left.min(many.window());
            for _ in 0..taken {
                asking.spawn(many.ask("echo", "a request").into_future());
            }
            left -= taken;
        }
    }
    for answer in asking.join_all().await {
        answer.expect("an answer");
    }
}
