//! Leaving in good order, and where a worker connects.

use std::sync::{Arc, Mutex};

use harness_proto::v1;
use harness_proto::v1::attach_request::Frame as In;
use harness_proto::v1::attach_response::Frame as Out;
use nix::sys::signal::{Signal, raise};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Code;
use worker_sdk::{Agent, Context, ErrorKind, Worker, agent_fn, blocking_fn};

use crate::fake::{Fake, ours, released, within};
use crate::subject::{Relay, builder, start};

/// An agent that replies when it is let.
fn gated() -> (impl Agent, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let agent = agent_fn(move |_: Context, (): ()| {
        let gate = Arc::clone(&held);
        async move {
            gate.acquire().await?.forget();
            Ok(())
        }
    });
    (agent, gate)
}

#[tokio::test]
async fn a_leaving_worker_finishes_the_request_in_hand() {
    let mut fake = Fake::start().await;
    let (agent, gate) = gated();
    let worker = start(builder(agent, &fake.address).slots(2));
    let mut busy = fake.welcomed().await;
    let idle = fake.welcomed().await;
    busy.request("run", "null").await;
    worker.leave();
    idle.leaves().await;
    let frame = busy.frame().await;
    assert!(matches!(frame, In::Leave(_)), "{frame:?}");
    gate.add_permits(1);
    assert_eq!(busy.value().await, "null");
    busy.half_closes().await;
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn drain_is_leaving_on_every_slot() {
    let mut fake = Fake::start().await;
    let (agent, gate) = gated();
    let worker = start(builder(agent, &fake.address).slots(2));
    let mut busy = fake.welcomed().await;
    let other = fake.welcomed().await;
    busy.request("run", "null").await;
    busy.send(Out::Drain(v1::Drain {
        reason: "making room".to_owned(),
    }))
    .await;
    other.leaves().await;
    let frame = busy.frame().await;
    assert!(matches!(frame, In::Leave(_)), "{frame:?}");
    gate.add_permits(1);
    busy.value().await;
    busy.half_closes().await;
    worker.ended().await.unwrap();
    assert!(!fake.has_call());
}

#[tokio::test]
async fn work_stopped_while_leaving_is_still_released() {
    let mut fake = Fake::start().await;
    let (agent, _gate) = gated();
    let worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    worker.leave();
    assert!(matches!(call.frame().await, In::Leave(_)));
    call.end(ours(Code::DeadlineExceeded, "DEADLINE")).await;
    let last = fake.call().await;
    assert!(released(&last).is_some());
    last.leaves().await;
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_leaving_worker_never_says_released_of_work_that_still_runs() {
    let mut fake = Fake::start().await;
    let (go, went) = std::sync::mpsc::channel::<()>();
    let went = Mutex::new(went);
    // It ignores its cancellation.
    let agent = blocking_fn(move |_, (): ()| {
        let _ = went.lock().unwrap().recv();
        Ok(())
    });
    let worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    worker.leave();
    assert!(matches!(call.frame().await, In::Leave(_)));
    call.end(ours(Code::DeadlineExceeded, "DEADLINE")).await;
    worker.ended().await.unwrap();
    assert!(!fake.has_call(), "it came back while its work still ran");
    go.send(()).unwrap();
}

#[tokio::test]
async fn a_worker_that_never_reached_a_harness_leaves_at_once() {
    let (agent, _gate) = gated();
    let worker = start(builder(agent, "127.0.0.1:1").slots(4));
    worker.leave();
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_worker_with_a_last_word_leaves_although_the_harness_is_gone() {
    let mut fake = Fake::start().await;
    let relay = Relay::before(&fake).await;
    let (agent, _gate) = gated();
    let worker = start(builder(agent, &relay.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    relay.close();
    call.hangs_up().await;
    worker.leave();
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn run_leaves_on_sigterm_and_gives_up_on_a_second_signal() {
    let mut fake = Fake::start().await;
    let (agent, _gate) = gated();
    let worker = Worker::builder(agent)
        .name("subject")
        .connect(fake.address.clone());
    let running = tokio::spawn(worker.run());
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    raise(Signal::SIGTERM).unwrap();
    assert!(matches!(call.frame().await, In::Leave(_)));
    raise(Signal::SIGINT).unwrap();
    let error = within("end", running).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    call.dropped().await;
}

#[tokio::test]
async fn a_worker_connects_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("harness.sock");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let mut fake = Fake::over(format!("unix:{}", path.display()), incoming);
    let worker = start(builder(
        agent_fn(|_, text: String| async { Ok(text) }),
        &fake.address,
    ));
    let mut call = fake.welcomed().await;
    call.request("run", "\"over a file\"").await;
    assert_eq!(call.value().await, "\"over a file\"");
    worker.leave();
    call.leaves().await;
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_thousand_slots_share_one_connection() {
    let mut fake = Fake::start().await;
    let worker = start(builder(agent_fn(|_, (): ()| async { Ok(()) }), &fake.address).slots(1000));
    let mut calls = Vec::new();
    for _ in 0..1000 {
        calls.push(fake.welcomed().await);
    }
    let ids: std::collections::HashSet<_> = calls
        .iter()
        .map(|call| call.hello.worker.clone().unwrap().worker_id)
        .collect();
    assert_eq!(ids.len(), 1);
    worker.leave();
    for call in calls {
        call.leaves().await;
    }
    worker.ended().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_cannot_be_offered_is_told_before_anything_is_dialled() {
    let (echo, kind) = (
        || agent_fn(|_, text: String| async { Ok(text) }),
        ErrorKind::InvalidWorker,
    );
    for (builder, kind) in [
        (Worker::builder(echo()), kind),
        (Worker::builder(echo()).name("Not A Name"), kind),
        (Worker::builder(echo()).name("a").slots(0), kind),
        (Worker::builder(echo()).name("a").slots(1001), kind),
        (
            Worker::builder(echo()).name("a").connect("nowhere"),
            ErrorKind::InvalidAddress,
        ),
    ] {
        assert_eq!(builder.run().await.unwrap_err().kind(), kind);
    }
}
