//! A harness inside an application: no other process to start, the same deadlines.
//!
//! The worker runs in here too, to show the parts side by side; agent code that may crash belongs
//! in a process of its own, which dials the same address.

use std::error::Error;
use std::time::Duration;

use harness_server::{Config, Server};
use tokio_util::sync::CancellationToken;
use worker_sdk::{Answer, ErrorKind, Harness, Worker, agent_fn};

#[tokio::main]
#[expect(
    clippy::print_stdout,
    reason = "the answers are what this program is for"
)]
async fn main() -> Result<(), Box<dyn Error>> {
    let (answer, error) = run().await?;
    println!("answered: {answer}");
    println!("stopped: {error}");
    Ok(())
}

async fn run() -> Result<(String, String), Box<dyn Error>> {
    // The harness, on a port the system gives.
    let listen = vec!["127.0.0.1:0".to_owned()];
    let server = Server::bind(Config {
        listen,
        ..Config::default()
    })
    .await?;
    let address = server.addresses().remove(0);
    let stop = CancellationToken::new();
    let serving = server.run(stop.clone());

    // A worker; its agent takes as many milliseconds as it is asked to.
    let agent = agent_fn(|_ctx, milliseconds: u64| async move {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        Ok(format!("took {milliseconds} ms"))
    });
    let worker = Worker::builder(agent).name("slow").connect(&address);
    let working = worker.run_until(stop.clone().cancelled_owned());

    // The application asks: once in time, once for too long.
    let application = async {
        // Whatever comes of it, harness and worker leave afterwards.
        let _stop = stop.clone().drop_guard();
        let harness = Harness::connect(&address).await?;
        let ask = |ms: u64| harness.ask("slow", ms).timeout(Duration::from_millis(500));
        // The worker may still be on its way.
        let first: Answer<String> = ask(10).wait_for_agent().await?;
        let second: Result<Answer<String>, _> = ask(60_000).await;
        let error = second.expect_err("a minute must not fit into half a second");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
        Ok::<_, worker_sdk::Error>((first.value, error.to_string()))
    };
    let ((), worked, answers) = tokio::join!(serving, working, application);
    worked?;
    Ok(answers?)
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn one_answer_comes_in_time_and_one_is_stopped() {
        let (answer, error) = super::run().await.unwrap();
        assert_eq!(answer, "took 10 ms");
        assert!(error.contains("deadline passed"), "{error}");
    }
}
