//! Which slot gets a run, and how often it is tried, over a real socket.

use std::time::{Duration, Instant};

use harness_proto::v1::{
    self, AskRequest, AttemptRef, ErrorCode, Hello, RetryPolicy, RunOptions, reply,
};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, ask, asking_for, eventually, hello, proto, reason, refused, typed,
};
use tonic::Code;

fn with(agent: &str, options: RunOptions) -> AskRequest {
    let plain = ask(agent, "1", SOON);
    let timeout = plain.options.as_ref().and_then(|options| options.timeout);
    AskRequest {
        options: Some(RunOptions {
            timeout: options.timeout.or(timeout),
            ..options
        }),
        ..plain
    }
}

fn labelled(agent: &str, pairs: &[(&str, &str)]) -> Hello {
    let mut hello = hello(agent);
    if let Some(worker) = &mut hello.worker {
        worker.labels = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
    }
    hello
}

fn selecting(pairs: &[(&str, &str)]) -> RunOptions {
    RunOptions {
        selector: pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..RunOptions::default()
    }
}

fn attempts(max_attempts: u32) -> RunOptions {
    RunOptions {
        retry_policy: Some(RetryPolicy {
            max_attempts,
            initial_backoff: Some(proto(Duration::from_millis(20))),
            ..RetryPolicy::default()
        }),
        ..RunOptions::default()
    }
}

fn failure(kind: &str, retryable: bool) -> reply::Outcome {
    reply::Outcome::Error(v1::Error {
        r#type: kind.to_owned(),
        message: "it failed".to_owned(),
        retryable,
        ..v1::Error::default()
    })
}

#[tokio::test]
async fn a_selector_finds_the_slot_with_its_labels_or_says_that_none_had_them() {
    let harness = Embedded::start().await;
    let _plain = RawSlot::attach(harness.connect().await, hello("s")).await;
    let mut gpu = RawSlot::attach(harness.connect().await, labelled("s", &[("gpu", "a100")])).await;
    let asked = asking_for(&harness, with("s", selecting(&[("gpu", "a100")]))).await;
    let request = gpu.request().await;
    gpu.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());

    let mut nowhere = selecting(&[("gpu", "h100")]);
    nowhere.timeout = Some(proto(Duration::from_millis(200)));
    let status = refused(&harness, with("s", nowhere)).await;
    let error = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    assert!(error.message.contains("gpu=h100"), "{}", error.message);
}

#[tokio::test]
async fn a_higher_priority_goes_first() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("s")).await;
    let busy = asking_for(&harness, ask("s", "0", SOON)).await;
    let first = slot.request().await;
    let mut waiting = Vec::new();
    let mut admin = harness_tests::raw::admin(&harness.connect().await);
    for priority in [-5, 0, 7] {
        let options = RunOptions {
            priority,
            ..RunOptions::default()
        };
        let mut request = with("s", options);
        request.payload = Some(harness_tests::raw::payload(&priority.to_string()));
        waiting.push(asking_for(&harness, request).await);
        let count = u32::try_from(waiting.len()).expect("few");
        eventually(SOON, "the run waits", || {
            let mut admin = admin.clone();
            async move {
                let agents = admin.list_agents(v1::ListAgentsRequest::default()).await;
                agents.is_ok_and(|agents| agents.get_ref().agents[0].queued == count)
            }
        })
        .await;
    }
    let _ = admin.list_agents(v1::ListAgentsRequest::default()).await;
    slot.reply(&first, "1").await;
    let mut order = Vec::new();
    for _ in 0..3 {
        let request = slot.request().await;
        order.push(
            request
                .payload
                .as_ref()
                .map(|p| p.data.clone())
                .unwrap_or_default(),
        );
        slot.reply(&request, "1").await;
    }
    assert_eq!(order, ["7", "0", "-5"]);
    assert!(busy.await.expect("no panic").is_ok());
    for asked in waiting {
        assert!(asked.await.expect("no panic").is_ok());
    }
}

#[tokio::test]
async fn a_failed_attempt_is_followed_by_another_as_the_policy_says() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, hello("s")).await;
    let asked = asking_for(&harness, with("s", attempts(3))).await;
    let one = slot.request().await;
    slot.reply_as(&one, 1, failure("Busy", true)).await;
    let two = slot.request().await;
    assert_eq!((&two.run_id, two.attempt), (&one.run_id, 2));
    assert_ne!(one.lease, two.lease);
    slot.reply(&two, "5").await;
    assert_eq!(asked.await.expect("no panic").expect("answered").attempt, 2);

    let asked = asking_for(&harness, with("s", attempts(2))).await;
    for attempt in 1..=2 {
        let request = slot.request().await;
        assert_eq!(request.attempt, attempt);
        slot.reply_as(&request, 1, failure("Busy", true)).await;
    }
    let status = asked.await.expect("no panic").expect_err("failed");
    let error = typed(&status, Code::Unknown, ErrorCode::AgentError);
    assert!(
        error.message.contains("attempt 2 of 2"),
        "{}",
        error.message
    );

    let asked = asking_for(&harness, with("s", attempts(3))).await;
    let request = slot.request().await;
    slot.reply_as(&request, 1, failure("Forbidden", false))
        .await;
    let status = asked.await.expect("no panic").expect_err("failed");
    assert_eq!(
        typed(&status, Code::Unknown, ErrorCode::AgentError).attempt,
        1
    );
}

#[tokio::test]
async fn an_attempt_that_takes_too_long_is_ended_and_tried_elsewhere() {
    let harness = Embedded::start().await;
    let mut slow = RawSlot::attach(harness.connect().await, hello("s")).await;
    let mut options = attempts(2);
    if let Some(policy) = &mut options.retry_policy {
        policy.attempt_timeout = Some(proto(Duration::from_millis(150)));
    }
    let start = Instant::now();
    let asked = asking_for(&harness, with("s", options)).await;
    let one = slow.request().await;
    let mut quick = RawSlot::attach(harness.connect().await, hello("s")).await;
    assert_eq!(reason(&slow.end().await), "DEADLINE_EXCEEDED");
    assert!(start.elapsed() >= Duration::from_millis(150));
    let two = quick.request().await;
    assert_eq!((&two.run_id, two.attempt), (&one.run_id, 2));
    quick.reply(&two, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_lost_worker_is_no_end_while_attempts_are_left() {
    let harness = Embedded::start().await;
    let mut frail = RawSlot::attach(harness.connect().await, hello("s")).await;
    let asked = asking_for(&harness, with("s", attempts(2))).await;
    let one = frail.request().await;
    drop(frail);
    let mut other = RawSlot::attach(harness.connect().await, hello("s")).await;
    let two = other.request().await;
    assert_eq!((&two.run_id, two.attempt), (&one.run_id, 2));
    other.reply(&two, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn an_ask_of_an_agent_names_its_parent_and_a_cycle_is_busy() {
    let harness = Embedded::start().await;
    let mut outer = RawSlot::attach(harness.connect().await, hello("outer")).await;
    let mut inner = RawSlot::attach(harness.connect().await, hello("inner")).await;
    let asked = asking_for(&harness, ask("outer", "1", SOON)).await;
    let above = outer.request().await;
    assert_eq!((above.depth, above.parent.clone()), (0, None));
    let parent = AttemptRef {
        run_id: above.run_id.clone(),
        attempt: above.attempt,
    };
    let options = RunOptions {
        parent: Some(parent.clone()),
        ..RunOptions::default()
    };
    let below = asking_for(&harness, with("inner", options.clone())).await;
    let request = inner.request().await;
    assert_eq!((request.depth, request.parent.as_ref()), (1, Some(&parent)));

    let nested = AttemptRef {
        run_id: request.run_id.clone(),
        attempt: 1,
    };
    let again = RunOptions {
        parent: Some(nested),
        ..RunOptions::default()
    };
    let status = refused(&harness, with("outer", again)).await;
    let error = typed(&status, Code::ResourceExhausted, ErrorCode::Busy);
    assert!(
        error.message.contains("outer -> inner -> outer"),
        "{}",
        error.message
    );

    inner.reply(&request, "1").await;
    assert!(below.await.expect("no panic").is_ok());
    outer.reply(&above, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}
