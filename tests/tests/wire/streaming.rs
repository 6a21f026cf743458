//! Streamed asks, watched and cancelled runs, and drained workers, over a real socket.

use std::time::Duration;

use harness_proto::v1::{
    self, AskStreamRequest, CancelRunRequest, DrainWorkerRequest, ErrorCode, GetRunRequest,
    RunOptions, RunState, StopProof, WatchRunRequest, ask_stream_response, attach_request::Frame,
    attach_response, entry, hello, outcome, watch_run_response,
};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, admin, asking, full_hello, hello as minimal, output, payload, proto,
    reason, runs, typed, within,
};
use tonic::{Code, Streaming};

fn stream(agent: &str, timeout: Duration) -> AskStreamRequest {
    AskStreamRequest {
        agent: agent.to_owned(),
        payload: Some(payload("1")),
        options: Some(RunOptions {
            timeout: Some(proto(timeout)),
            ..RunOptions::default()
        }),
    }
}

async fn event(answers: &mut Streaming<v1::AskStreamResponse>) -> ask_stream_response::Event {
    let answer = within(SOON, answers.message()).await.expect("an event");
    answer.expect("not the end").event.expect("a known event")
}

fn kind(entry: &v1::JournalEntry) -> &entry::Kind {
    entry
        .entry
        .as_ref()
        .and_then(|entry| entry.kind.as_ref())
        .expect("a known kind")
}

#[tokio::test]
async fn a_streamed_ask_brings_run_output_and_reply_in_order() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("s")).await;
    let mut client = runs(&harness.connect().await);
    let mut answers = client
        .ask_stream(stream("s", SOON))
        .await
        .expect("open")
        .into_inner();
    let ask_stream_response::Event::Run(run) = event(&mut answers).await else {
        panic!("run comes first")
    };
    let request = slot.request().await;
    assert_eq!(run.run_id, request.run_id);
    for seq in 1..=3 {
        slot.send(output(&request, seq, 3)).await;
    }
    slot.reply_as(&request, 4, v1::reply::Outcome::Value(payload("\"done\"")))
        .await;
    let (mut seqs, mut outputs) = (Vec::new(), 0);
    let reply = loop {
        match event(&mut answers).await {
            ask_stream_response::Event::Entry(entry) => {
                seqs.push(entry.seq);
                outputs += usize::from(matches!(kind(&entry), entry::Kind::Output(_)));
            }
            ask_stream_response::Event::Reply(reply) => break reply,
            other => panic!("unexpected {other:?}"),
        }
    };
    assert_eq!(outputs, 3);
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]), "{seqs:?}");
    assert_eq!(reply.payload.expect("a payload").data, "\"done\"");
    assert!(within(SOON, answers.message()).await.expect("OK").is_none());
}

#[tokio::test]
async fn a_streamed_ask_that_fails_ends_with_the_typed_status() {
    let harness = Embedded::start().await;
    let _slot = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut client = runs(&harness.connect().await);
    let request = stream("s", Duration::from_millis(200));
    let mut answers = client.ask_stream(request).await.expect("open").into_inner();
    let status = within(SOON, async {
        loop {
            if let Err(status) = answers.message().await {
                return status;
            }
        }
    })
    .await;
    let _ = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
}

#[tokio::test]
async fn dropping_a_streamed_ask_hangs_up() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut client = runs(&harness.connect().await);
    let answers = client
        .ask_stream(stream("s", SOON))
        .await
        .expect("open")
        .into_inner();
    let _ = slot.request().await;
    drop(answers);
    assert_eq!(reason(&slot.end().await), "CANCELLED");
}

#[tokio::test]
async fn a_caller_that_stops_reading_holds_up_appended_and_costs_nothing() {
    let limits = Limits {
        heartbeat_interval: Duration::from_millis(100),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut slot = RawSlot::attach(harness.connect().await, full_hello("s")).await;
    let mut client = runs(&harness.connect().await);
    let mut answers = client
        .ask_stream(stream("s", 2 * SOON))
        .await
        .expect("open")
        .into_inner();
    let request = slot.request().await;
    // As much as the windows allow, again and again, until nothing is acknowledged any more.
    let (mut sent, mut acknowledged, mut beats) = (0_u64, 0, 0);
    let mut beat = tokio::time::interval(Duration::from_millis(50));
    while beats < 10 {
        while sent < acknowledged + 8 {
            sent += 1;
            slot.send(output(&request, sent, 30_000)).await;
        }
        tokio::select! {
            _ = beat.tick() => {
                let run_id = request.run_id.clone();
                let attempt = request.attempt;
                slot.send(Frame::Heartbeat(v1::WorkerHeartbeat { run_id, attempt })).await;
            }
            message = slot.inbound.message() => match message.expect("the call lives") {
                Some(v1::AttachResponse { frame: Some(attach_response::Frame::Appended(a)) }) => {
                    acknowledged = a.worker_seq;
                    beats = 0;
                }
                Some(v1::AttachResponse { frame: Some(attach_response::Frame::Heartbeat(_)) }) => {
                    beats += 1;
                }
                other => panic!("unexpected {other:?}"),
            },
        }
    }
    // What the transport of a caller that does not read takes in: a few MiB.
    assert!(sent < 200, "held up after {sent} entries");
    slot.send(Frame::Reply(v1::Reply {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        worker_seq: sent + 1,
        outcome: Some(v1::reply::Outcome::Value(payload("1"))),
    }))
    .await;
    let mut outputs = 0;
    loop {
        match event(&mut answers).await {
            ask_stream_response::Event::Entry(entry) => {
                outputs += u64::from(matches!(kind(&entry), entry::Kind::Output(_)));
            }
            ask_stream_response::Event::Run(_) => {}
            ask_stream_response::Event::Reply(reply) => {
                assert_eq!(reply.attempt, 1);
                break;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(outputs, sent, "nothing was lost");
}

#[tokio::test]
async fn a_slow_reader_of_a_minimal_worker_gets_a_gap() {
    let limits = Limits {
        journal_bytes: bytesize_kib(64),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let asked = asking(&harness, "s", SOON).await;
    let request = slot.request().await;
    for seq in 1..=20 {
        slot.send(output(&request, seq, 10_000)).await;
    }
    slot.reply_as(&request, 21, v1::reply::Outcome::Value(payload("1")))
        .await;
    assert!(asked.await.expect("no panic").is_ok());
    let mut client = runs(&harness.connect().await);
    let watch = WatchRunRequest {
        run_id: request.run_id,
        ..WatchRunRequest::default()
    };
    let mut entries = client.watch_run(watch).await.expect("open").into_inner();
    let (mut gap, mut outputs) = (None, 0);
    while let Some(answer) = within(SOON, entries.message()).await.expect("no error") {
        match answer.event.expect("a known event") {
            watch_run_response::Event::Entry(entry) => {
                outputs += usize::from(matches!(kind(&entry), entry::Kind::Output(_)));
            }
            watch_run_response::Event::Gap(told) => gap = Some(told.first_kept),
            watch_run_response::Event::Heartbeat(_) => {}
        }
    }
    assert!(gap.is_some(), "told of what was dropped");
    assert!((1..20).contains(&outputs), "{outputs}");
}

fn bytesize_kib(kib: u64) -> bytesize::ByteSize {
    bytesize::ByteSize::kib(kib)
}

#[tokio::test]
async fn a_run_can_be_watched_from_any_number_until_its_work_has_stopped() {
    let harness = Embedded::start().await;
    let hello = minimal("s");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let asked = asking(&harness, "s", Duration::from_millis(300)).await;
    let request = slot.request().await;
    let mut client = runs(&harness.connect().await);
    let watch = WatchRunRequest {
        run_id: request.run_id.clone(),
        from_seq: 2,
        include_stop: true,
        ..WatchRunRequest::default()
    };
    let mut entries = client.watch_run(watch).await.expect("open").into_inner();
    let _ = slot.end().await;
    assert!(asked.await.expect("no panic").is_err());
    let released = v1::Released {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        lease: request.lease.clone(),
    };
    let again = v1::Hello {
        previous: Some(hello::Previous::Released(released)),
        ..hello
    };
    let _slot = RawSlot::attach(harness.connect().await, again).await;
    let mut told = Vec::new();
    while let Some(answer) = within(SOON, entries.message()).await.expect("no error") {
        if let Some(watch_run_response::Event::Entry(entry)) = answer.event {
            told.push((entry.seq, kind(&entry).clone()));
        }
    }
    let seqs: Vec<u64> = told.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, [2, 3, 4, 5, 6]);
    assert!(matches!(told[0].1, entry::Kind::AttemptStarted(_)));
    assert!(matches!(told[1].1, entry::Kind::AttemptEnded(_)));
    assert!(matches!(told[2].1, entry::Kind::RunEnded(_)));
    assert!(matches!(told[3].1, entry::Kind::AttemptStopping(_)));
    let entry::Kind::AttemptStopped(stopped) = &told[4].1 else {
        panic!("{:?}", told[4])
    };
    assert_eq!(stopped.how(), StopProof::Released);

    let run = client
        .get_run(GetRunRequest {
            run_id: request.run_id,
            ..GetRunRequest::default()
        })
        .await
        .expect("known")
        .into_inner()
        .run
        .expect("a run");
    assert_eq!(
        (run.state(), run.attempt, run.head),
        (RunState::TimedOut, 1, 6)
    );
    assert!(matches!(
        run.outcome,
        Some(v1::Outcome {
            outcome: Some(outcome::Outcome::Error(_))
        })
    ));
}

#[tokio::test]
async fn a_run_can_be_cancelled_by_its_id_and_says_by_whom_and_why() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let asked = asking(&harness, "s", SOON).await;
    let request = slot.request().await;
    let mut client = runs(&harness.connect().await);
    let cancel = CancelRunRequest {
        run_id: request.run_id.clone(),
        reason: "not needed".into(),
        ..CancelRunRequest::default()
    };
    for _ in 0..2 {
        let run = client
            .cancel_run(cancel.clone())
            .await
            .expect("cancelled")
            .into_inner()
            .run;
        assert_eq!(run.expect("a run").state(), RunState::Cancelled);
    }
    assert_eq!(reason(&slot.end().await), "CANCELLED");
    let status = asked.await.expect("no panic").expect_err("cancelled");
    let error = typed(&status, Code::Cancelled, ErrorCode::Cancelled);
    assert!(
        error.message.contains("anonymous: not needed"),
        "{}",
        error.message
    );
    let unknown = GetRunRequest {
        run_id: uuid::Uuid::now_v7().to_string(),
        ..GetRunRequest::default()
    };
    let status = client.get_run(unknown).await.expect_err("unknown");
    let _ = typed(&status, Code::NotFound, ErrorCode::RunNotFound);
}

#[tokio::test]
async fn a_drained_worker_finishes_leaves_and_may_not_come_back() {
    let harness = Embedded::start().await;
    for full in [true, false] {
        let hello = if full { full_hello("d") } else { minimal("d") };
        let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
        let asked = asking(&harness, "d", SOON).await;
        let request = slot.request().await;
        let worker = hello.worker.clone().expect("a worker").worker_id;
        let drain = DrainWorkerRequest {
            worker,
            reason: "update".into(),
            ..DrainWorkerRequest::default()
        };
        let drained = admin(&harness.connect().await)
            .drain_worker(drain)
            .await
            .expect("drained");
        assert!(drained.into_inner().worker.expect("a worker").draining);
        if full {
            assert!(
                matches!(slot.next().await, attach_response::Frame::Drain(d) if d.reason == "update")
            );
        }
        slot.reply(&request, "1").await;
        assert!(asked.await.expect("no panic").is_ok());
        if !full {
            assert!(matches!(
                slot.next().await,
                attach_response::Frame::Drain(_)
            ));
        }
        slot.half_close();
        slot.end_within(SOON).await.expect("OK");
        let mut again = RawSlot::open(harness.connect().await).await;
        again.send(Frame::Hello(hello)).await;
        let end = again.end().await;
        assert_eq!(
            (end.code(), reason(&end).as_str()),
            (Code::FailedPrecondition, "DRAINED")
        );
    }
}
