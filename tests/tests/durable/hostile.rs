//! Callers that ask for much, or for little in many ways; and files that are not what they were.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::{
    ErrorCode, ListRunsRequest, ListRunsResponse, Payload, RetryPolicy, RunOptions, RunState,
    StartRunRequest, attach_response, reply, run_service_client::RunServiceClient,
};
use harness_server::Limits;
use harness_server::ids::{AgentKey, RunId};
use harness_server::store::{Entry, Memory, NewRun, Stamp, Step, Store};
use harness_tests::durable::{journal, start, started, value};
use harness_tests::raw::{Embedded, RawSlot, SOON, eventually, full_hello, runs, typed, within};
use prost::Message as _;
use tonic::Code;
use tonic::transport::Channel;
use uuid::Uuid;

async fn harness() -> Embedded {
    Embedded::storing(Limits::default(), Some(Arc::new(Memory::default()))).await
}

/// A run that waits for its agent.
fn waiting(labels: HashMap<String, String>) -> StartRunRequest {
    let options = Some(RunOptions {
        wait_for_agent: true,
        ..RunOptions::default()
    });
    StartRunRequest {
        options,
        labels,
        ..start("echo", "1")
    }
}

/// All runs, page by page.
async fn pages(channel: &Channel) -> Vec<ListRunsResponse> {
    let mut all = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRunsRequest {
            page_size: 1000,
            page_token: page_token.clone(),
            ..ListRunsRequest::default()
        };
        let mut client: RunServiceClient<Channel> = runs(channel);
        let page = within(SOON, client.list_runs(request)).await;
        let page = page.expect("a page that any client takes").into_inner();
        page_token.clone_from(&page.next_page_token);
        all.push(page);
        if page_token.is_empty() {
            return all;
        }
    }
}

fn ids(pages: &[ListRunsResponse]) -> Vec<String> {
    let runs = pages.iter().flat_map(|page| &page.runs);
    runs.map(|run| run.run_id.clone()).collect()
}

#[tokio::test]
async fn a_page_of_runs_with_large_labels_is_no_larger_than_a_client_takes() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let label = |at: usize| (format!("{at:0>900}"), "x".repeat(1000));
    let mut made = Vec::new();
    for _ in 0..100 {
        let labels = (0..32).map(label).collect();
        made.push(started(&channel, waiting(labels)).await.run_id);
    }
    made.reverse();
    let pages = pages(&channel).await;
    for page in &pages {
        assert!(page.encoded_len() < 2 << 20, "{}", page.encoded_len());
    }
    assert!(pages.len() > 3, "{} pages", pages.len());
    assert_eq!(ids(&pages), made);
}

#[tokio::test]
async fn a_page_of_runs_with_large_replies_reads_few_of_them() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let large = Payload {
        data: format!("\"{}\"", "x".repeat(4_000_000)).into(),
        ..Payload::default()
    };
    let mut made = Vec::new();
    for _ in 0..12 {
        let run = started(&channel, start("echo", "1")).await;
        let request = slot.request().await;
        slot.reply_as(&request, 1, reply::Outcome::Value(large.clone()))
            .await;
        loop {
            if let attach_response::Frame::Appended(_) = slot.next().await {
                break;
            }
        }
        made.push(run.run_id);
    }
    made.reverse();
    let pages = pages(&channel).await;
    assert!(pages.len() > 1, "they are not read for one page");
    assert_eq!(ids(&pages), made);
    for run in pages.iter().flat_map(|page| &page.runs) {
        assert_eq!((run.state(), &*value(run)), (RunState::Succeeded, ""));
    }
}

#[tokio::test]
async fn one_key_is_one_run_whether_the_media_type_is_said_or_not() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let with = |content_type: &str| StartRunRequest {
        idempotency_key: "k".to_owned(),
        payload: Some(Payload {
            content_type: content_type.to_owned(),
            data: "1".into(),
        }),
        ..waiting(HashMap::new())
    };
    let first = started(&channel, with("")).await;
    let second = started(&channel, with("application/json")).await;
    assert_eq!(first.run_id, second.run_id);
    let other = within(SOON, runs(&channel).start_run(with("text/plain"))).await;
    let other = other.expect_err("another payload");
    let _ = typed(&other, Code::AlreadyExists, ErrorCode::IdempotencyConflict);
}

#[tokio::test]
async fn what_a_waiting_run_carries_is_limited() {
    let harness = harness().await;
    let channel = harness.connect().await;
    let types = |count: usize, bytes: usize| RunOptions {
        retry_policy: Some(RetryPolicy {
            non_retryable_types: vec!["x".repeat(bytes); count],
            ..RetryPolicy::default()
        }),
        ..RunOptions::default()
    };
    let selector = RunOptions {
        selector: HashMap::from([("x".repeat(1025), String::new())]),
        ..RunOptions::default()
    };
    let cases = [
        (types(65, 1), "non_retryable_types"),
        (types(1, 257), "non_retryable_types"),
        (selector, "options.selector"),
    ];
    for (options, field) in cases {
        let request = StartRunRequest {
            options: Some(RunOptions {
                wait_for_agent: true,
                ..options
            }),
            ..start("echo", "1")
        };
        let refused = within(SOON, runs(&channel).start_run(request)).await;
        let refused = refused.expect_err("it is too much");
        let told = typed(&refused, Code::InvalidArgument, ErrorCode::InvalidRequest);
        assert!(told.message.contains(field), "{}", told.message);
    }
    let request = StartRunRequest {
        options: Some(RunOptions {
            wait_for_agent: true,
            ..types(64, 256)
        }),
        ..start("echo", "1")
    };
    started(&channel, request).await;
}

#[tokio::test]
async fn a_run_made_before_the_clock_was_set_back_is_delivered() {
    let store = Arc::new(Memory::default());
    let hour = Duration::from_secs(3600);
    let later = std::time::SystemTime::now() + hour;
    let since = later
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .expect("a clock of this century");
    let later = Stamp(i64::try_from(since.as_micros()).expect("a stamp"));
    let run = NewRun {
        id: RunId(Uuid::now_v7()),
        agent: AgentKey::new("", "echo"),
        key: String::new(),
        priority: 0,
        created: later,
        start: None,
        deadline: Stamp(later.0 * 2),
        caller: "anonymous".to_owned(),
        depth: 0,
        options: Vec::new().into(),
        labels: std::collections::BTreeMap::new(),
    };
    let kind = harness_proto::v1::entry::Kind::RunStarted(harness_proto::v1::RunStarted {
        request: Some(harness_tests::raw::payload("1")),
    });
    let content = harness_proto::v1::Entry { kind: Some(kind) };
    let entry = Entry {
        seq: 1,
        attempt: harness_server::ids::Attempt(0),
        worker_seq: 0,
        time: later,
        content: content.encode_to_vec().into(),
    };
    let run_id = run.id.to_string();
    let step = Step::Enqueue {
        run: std::sync::Arc::new(run),
        entries: vec![entry],
        first: None,
    };
    store.write(
        step,
        Box::new(|written| assert!(written.is_ok(), "{written:?}")),
    );
    let harness = Embedded::storing(Limits::default(), Some(store)).await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let request = slot.request().await;
    assert_eq!(request.run_id, run_id);
    slot.reply(&request, "2").await;
    journal(&harness.connect().await, &run_id, SOON).await;
}

#[tokio::test]
async fn a_key_gives_its_run_even_where_a_new_one_would_be_refused() {
    let store: Arc<dyn Store> = Arc::new(Memory::default());
    let limits = Limits {
        durable_runs: 1,
        ..Limits::default()
    };
    let harness = Embedded::storing(limits.clone(), Some(store.clone())).await;
    let channel = harness.connect().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    let keyed = |key: &str| StartRunRequest {
        idempotency_key: key.to_owned(),
        ..start("echo", "\"x\"")
    };
    let first = started(&channel, keyed("k")).await;
    let refused = async |channel: &Channel, code: ErrorCode| {
        let status = within(SOON, runs(channel).start_run(keyed("other"))).await;
        let status = status.expect_err("a new one is refused");
        let _ = typed(&status, status.code(), code);
        let again = started(channel, keyed("k")).await;
        assert_eq!(again.run_id, first.run_id, "{code:?}");
    };
    refused(&channel, ErrorCode::Busy).await;
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    journal(&channel, &first.run_id, SOON).await;
    drop(slot);

    // Another version of the agent does not take what the one before took.
    let mut other = full_hello("echo");
    let agent = other.agent.as_mut().expect("an agent");
    agent.request_schema = "{\"type\": \"integer\"}".into();
    let _slot = RawSlot::attach(harness.connect().await, other).await;
    let only_the_other = || async {
        let status = runs(&channel).start_run(keyed("other")).await;
        status.is_err_and(|status| status.code() == Code::InvalidArgument)
    };
    eventually(SOON, "the first is gone", only_the_other).await;
    refused(&channel, ErrorCode::InvalidRequest).await;
    // No run, but the agents.
    let (before, max) = (Stamp(i64::MAX), 0);
    store.write(Step::Forget { before, max }, Box::new(|_| {}));
    harness.left().await;

    let harness = Embedded::storing(limits, Some(store)).await;
    refused(&harness.connect().await, ErrorCode::UnknownAgent).await;
}
