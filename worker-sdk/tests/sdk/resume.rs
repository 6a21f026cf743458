//! Work that goes on after its call was lost, and the recorded steps of a durable run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::attach_response::Frame as Out;
use harness_proto::v1::entry::Kind;
use tokio::sync::{Semaphore, mpsc};
use tonic::Code;
use worker_sdk::journal::Usage;
use worker_sdk::{Agent, Context, agent_fn};

use crate::fake::{Call, Fake, lease, ours, released, resumed, within};
use crate::subject::{Relay, builder, start};

/// A durable run of agent `subject` whose work may go on for so long.
fn durable(run_id: &str, window: Duration) -> v1::Request {
    v1::Request {
        run_id: run_id.to_owned(),
        attempt: 1,
        lease: lease(run_id),
        payload: Some(v1::Payload {
            content_type: String::new(),
            data: "null".into(),
        }),
        durable: true,
        time_left: Some(Duration::from_secs(600).try_into().unwrap()),
        reattach_window: Some(window.try_into().unwrap()),
        ..Default::default()
    }
}

const LONG: Duration = Duration::from_secs(60);

/// An agent that sends a piece, waits to be let on, and so on three times. It says when it is
/// dropped by closing the channel that comes with it.
fn pieces() -> (impl Agent, Arc<Semaphore>, mpsc::Receiver<()>) {
    let gate = Arc::new(Semaphore::new(0));
    let (alive, dropped) = mpsc::channel::<()>(1);
    let passing = Arc::clone(&gate);
    let alive = std::sync::Mutex::new(Some(alive));
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let (gate, alive) = (Arc::clone(&passing), alive.lock().unwrap().take());
        async move {
            let _alive = alive;
            for piece in 1..=3 {
                ctx.output(piece).await?;
                gate.acquire().await?.forget();
            }
            Ok("done")
        }
    });
    (agent, gate, dropped)
}

async fn piece(call: &mut Call) -> (u64, String) {
    let append = call.append().await;
    let Some(Kind::Output(output)) = append.entry.unwrap().kind else {
        panic!("no output");
    };
    let data = output.payload.unwrap().data;
    (append.worker_seq, String::from_utf8(data.to_vec()).unwrap())
}

#[tokio::test]
async fn a_cut_call_is_resumed_and_what_is_unacknowledged_is_sent_again_in_order() {
    let mut fake = Fake::start().await;
    let relay = Relay::before(&fake).await;
    let (agent, gate, _dropped) = pieces();
    let _worker = start(builder(agent, &relay.address));
    let mut call = fake.welcomed().await;
    call.send(Out::Request(durable("run", LONG))).await;
    gate.add_permits(1);
    assert_eq!(piece(&mut call).await, (1, "1".to_owned()));
    assert_eq!(piece(&mut call).await, (2, "2".to_owned()));
    relay.cut();
    // It goes on meanwhile: what it writes waits.
    gate.add_permits(2);
    let mut call = fake.call().await;
    assert_eq!(resumed(&call), Some(("run", 1, &lease("run")[..])));
    call.welcome_back(1).await;
    assert_eq!(piece(&mut call).await, (2, "2".to_owned()));
    assert_eq!(piece(&mut call).await, (3, "3".to_owned()));
    let reply = call.reply().await;
    assert_eq!((reply.run_id.as_str(), reply.worker_seq), ("run", 4));

    // The reply was not acknowledged: it is sent again, and nothing before it is.
    call.acknowledge(3).await;
    relay.cut();
    let mut call = fake.call().await;
    assert_eq!(resumed(&call), Some(("run", 1, &lease("run")[..])));
    call.welcome_back(3).await;
    assert_eq!(call.reply().await.worker_seq, 4);
    call.acknowledge(4).await;
    // The slot is an ordinary one again.
    gate.add_permits(3);
    call.request("next", "null").await;
    assert_eq!(piece(&mut call).await, (1, "1".to_owned()));
}

#[tokio::test]
async fn a_reply_that_was_taken_is_acknowledged_by_the_welcome() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|_, (): ()| async { Ok(()) });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.send(Out::Request(durable("run", LONG))).await;
    assert_eq!(call.reply().await.worker_seq, 1);
    call.reset().await;
    let mut call = fake.call().await;
    assert!(resumed(&call).is_some());
    call.welcome_back(1).await;
    call.request("next", "null").await;
    assert_eq!(call.value().await, "null");
}

#[tokio::test]
async fn work_that_ends_while_no_call_takes_it_replies_over_the_next() {
    let mut fake = Fake::start().await;
    let gate = Arc::new(Semaphore::new(0));
    let (ended, mut ends) = mpsc::channel(1);
    let passing = Arc::clone(&gate);
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let (gate, ended) = (Arc::clone(&passing), ended.clone());
        async move {
            ctx.output(1).await?;
            // Time passes too while there is no call.
            tokio::time::sleep(Duration::from_millis(10)).await;
            gate.acquire().await?.forget();
            ended.send(()).await?;
            Ok("done")
        }
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.send(Out::Request(durable("run", LONG))).await;
    piece(&mut call).await;
    call.reset().await;
    let mut call = fake.call().await;
    gate.add_permits(1);
    within("end", ends.recv()).await.unwrap();
    // Not before the welcome.
    let early = tokio::time::timeout(Duration::from_millis(50), call.frame()).await;
    assert!(early.is_err(), "{early:?}");
    call.welcome_back(1).await;
    let reply = call.reply().await;
    assert_eq!((reply.run_id.as_str(), reply.worker_seq), ("run", 2));
}

#[tokio::test]
async fn an_end_that_answers_a_resume_stops_the_work_at_once() {
    for (code, reason, is_released) in [
        (Code::Aborted, "SUPERSEDED", true),
        (Code::Cancelled, "CANCELLED", true),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED", true),
        (Code::Aborted, "NOT_YOURS", false),
    ] {
        let mut fake = Fake::start().await;
        let (agent, _gate, mut dropped) = pieces();
        let _worker = start(builder(agent, &fake.address));
        let mut call = fake.welcomed().await;
        call.send(Out::Request(durable("run", LONG))).await;
        piece(&mut call).await;
        call.reset().await;
        let call = fake.call().await;
        assert!(resumed(&call).is_some());
        call.end(ours(code, reason)).await;
        assert!(within("drop", dropped.recv()).await.is_none());
        let call = fake.call().await;
        let said = released(&call);
        assert_eq!(said.is_some(), is_released, "{reason}: {said:?}");
    }
}

#[tokio::test]
async fn work_that_no_call_resumes_in_its_window_is_stopped_and_released() {
    let mut fake = Fake::start().await;
    let (agent, _gate, mut dropped) = pieces();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    let window = Duration::from_millis(300);
    call.send(Out::Request(durable("run", window))).await;
    piece(&mut call).await;
    call.end(ours(Code::Unavailable, "LEAVING")).await;
    // Every try is lost too.
    loop {
        let call = fake.call().await;
        match call.hello.previous {
            Some(v1::hello::Previous::Resume(_)) => {
                call.end(ours(Code::Unavailable, "LEAVING")).await;
            }
            Some(v1::hello::Previous::Released(it)) => {
                assert_eq!(it.run_id, "run");
                break;
            }
            None => panic!("neither resumed nor released"),
        }
    }
    assert!(within("drop", dropped.recv()).await.is_none());
}

#[tokio::test]
async fn a_harness_that_is_gone_for_the_window_ends_the_work_without_it() {
    let mut fake = Fake::start().await;
    let relay = Relay::before(&fake).await;
    let (agent, _gate, mut dropped) = pieces();
    let _worker = start(builder(agent, &relay.address));
    let mut call = fake.welcomed().await;
    let window = Duration::from_millis(200);
    call.send(Out::Request(durable("run", window))).await;
    piece(&mut call).await;
    relay.close();
    assert!(within("drop", dropped.recv()).await.is_none());
    assert!(!fake.has_call());
}

#[tokio::test]
async fn the_window_of_each_slot_ends_though_another_waits_for_the_connection() {
    let mut fake = Fake::start().await;
    let relay = Relay::before(&fake).await;
    let (dropped, mut drops) = mpsc::channel::<()>(8);
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let dropped = dropped.clone();
        async move {
            let _dropped = Says(dropped);
            ctx.output(1).await?;
            std::future::pending::<()>().await;
            Ok(())
        }
    });
    let _worker = start(builder(agent, &relay.address).slots(4));
    let mut calls = Vec::new();
    for run in ["a", "b", "c"] {
        let mut call = fake.welcomed().await;
        let window = Duration::from_millis(200);
        call.send(Out::Request(durable(run, window))).await;
        piece(&mut call).await;
        calls.push(call);
    }
    fake.welcomed().await;
    relay.close();
    for _ in 0..3 {
        within("drop", drops.recv()).await.unwrap();
    }
}

/// Says when it is dropped.
struct Says(mpsc::Sender<()>);

impl Drop for Says {
    fn drop(&mut self) {
        self.0.try_send(()).unwrap();
    }
}

#[tokio::test]
async fn a_leaving_worker_sees_work_that_was_lost_to_its_end() {
    let mut fake = Fake::start().await;
    let (agent, gate, _dropped) = pieces();
    let worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.send(Out::Request(durable("run", LONG))).await;
    piece(&mut call).await;
    worker.leave();
    let frame = call.frame().await;
    assert!(matches!(frame, v1::attach_request::Frame::Leave(_)));
    call.reset().await;
    gate.add_permits(3);
    let mut call = fake.call().await;
    assert!(resumed(&call).is_some());
    call.welcome_back(1).await;
    let frame = call.frame().await;
    assert!(matches!(frame, v1::attach_request::Frame::Leave(_)));
    assert_eq!(piece(&mut call).await.0, 2);
    assert_eq!(piece(&mut call).await.0, 3);
    assert_eq!(call.reply().await.worker_seq, 4);
    call.acknowledge(4).await;
    call.half_closes().await;
    worker.ended().await.unwrap();
}

/// An agent of two steps that counts how often the work of each ran.
fn steps() -> (impl Agent, Arc<[AtomicUsize; 2]>) {
    let runs = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&runs);
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let runs = Arc::clone(&counted);
        async move {
            let (first, second) = (&runs[0], &runs[1]);
            let ctx_ref = &ctx;
            let one: u64 = ctx
                .step("one", |_| async move {
                    first.fetch_add(1, Ordering::Relaxed);
                    ctx_ref
                        .usage(Usage {
                            input_tokens: 5,
                            ..Usage::default()
                        })
                        .await?;
                    Ok(1)
                })
                .read_only()
                .await?;
            let two: u64 = ctx
                .step("two", |key| async move {
                    assert_eq!(key, "run/two/1");
                    second.fetch_add(1, Ordering::Relaxed);
                    Ok(2)
                })
                .side_effect()
                .await?;
            let tokens: u64 = ctx.used().iter().map(|usage| usage.input_tokens).sum();
            Ok([one, two, tokens])
        }
    });
    (agent, runs)
}

async fn step(call: &mut Call) -> (u64, v1::Step) {
    let append = call.append().await;
    match append.entry.unwrap().kind {
        Some(Kind::Step(step)) => (append.worker_seq, step),
        other => panic!("a step, not {other:?}"),
    }
}

#[tokio::test]
async fn a_step_returns_once_it_is_acknowledged_also_over_a_resume() {
    let mut fake = Fake::start().await;
    let (agent, runs) = steps();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.send(Out::Request(durable("run", LONG))).await;
    let usage = call.append().await.entry.unwrap().kind.unwrap();
    assert!(matches!(usage, Kind::Usage(_)), "{usage:?}");
    let (seq, one) = step(&mut call).await;
    assert_eq!((seq, one.name.as_str(), one.key.as_str()), (2, "one", "1"));
    assert_eq!(one.kind(), v1::StepKind::Done);
    // The next one does not begin before this one is durable.
    call.acknowledge(1).await;
    let early = tokio::time::timeout(Duration::from_millis(50), call.frame()).await;
    assert!(early.is_err(), "{early:?}");
    call.acknowledge(2).await;
    let (seq, begun) = step(&mut call).await;
    assert_eq!((seq, begun.kind()), (3, v1::StepKind::Started));
    assert_eq!(begun.idempotency_key, "run/two/1");
    let early = tokio::time::timeout(Duration::from_millis(50), call.frame()).await;
    assert!(early.is_err() && runs[1].load(Ordering::Relaxed) == 0);
    // The begin was taken and the word of it lost.
    call.reset().await;
    let mut call = fake.call().await;
    assert!(resumed(&call).is_some());
    call.welcome_back(3).await;
    let (seq, done) = step(&mut call).await;
    assert_eq!((seq, done.kind()), (4, v1::StepKind::Done));
    call.acknowledge(4).await;
    assert_eq!(call.value().await, "[1,2,5]");
    assert_eq!(runs[0].load(Ordering::Relaxed), 1);
    assert_eq!(runs[1].load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_comes_with_the_request_is_not_done_again() {
    let mut fake = Fake::start().await;
    let (agent, runs) = steps();
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    let entries = [
        (
            3,
            Kind::Usage(v1::Usage {
                input_tokens: 5,
                ..Default::default()
            }),
        ),
        (
            4,
            Kind::Step(v1::Step {
                name: "one".to_owned(),
                key: "1".to_owned(),
                kind: v1::StepKind::Done.into(),
                outcome: Some(v1::Outcome {
                    outcome: Some(v1::outcome::Outcome::Value(v1::Payload {
                        content_type: String::new(),
                        data: "7".into(),
                    })),
                }),
                idempotency_key: "run/one/1".to_owned(),
            }),
        ),
        (
            9,
            Kind::Step(v1::Step {
                name: "two".to_owned(),
                key: "1".to_owned(),
                kind: v1::StepKind::Started.into(),
                ..Default::default()
            }),
        ),
    ];
    call.send(Out::Request(v1::Request {
        attempt: 2,
        replay_entries: 3,
        ..durable("run", LONG)
    }))
    .await;
    for (seq, kind) in entries {
        let entry = v1::JournalEntry {
            seq,
            attempt: 1,
            time: None,
            entry: Some(v1::Entry { kind: Some(kind) }),
        };
        call.send(Out::Entry(entry)).await;
    }
    let error = call.error().await;
    assert_eq!(error.r#type, "OutcomeUnknown", "{error:?}");
    assert_eq!(runs[0].load(Ordering::Relaxed), 0);
    assert_eq!(runs[1].load(Ordering::Relaxed), 0);
}
