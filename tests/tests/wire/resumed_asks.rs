//! Asks whose call breaks under `interactive_reattach_window`, without a store: their worker comes
//! back in its time and goes on. Workers that come too late are in `resumed_late`.

use std::time::{Duration, Instant};

use harness_proto::v1::attach_request::Frame;
use harness_proto::v1::{
    self, AskStreamRequest, AskStreamResponse, ErrorCode, ListWorkersRequest, Request,
    WorkerHeartbeat, ask_stream_response, attach_response, entry, reply,
};
use harness_server::Limits;
use harness_tests::durable::{journal, kind_of};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, admin, ask, asking, eventually, full_hello, hello, output, payload,
    reason, runs, typed, within,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status, Streaming};

/// Longer than any test waits: nothing here is decided by its end.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// The timeout of an ask that is answered long before.
const AMPLE: Duration = Duration::from_secs(20);

/// A harness without a store that waits so long for the worker of an ask whose call is lost.
pub(crate) async fn waiting(window: Duration) -> Embedded {
    let limits = Limits {
        interactive_reattach_window: window,
        ..Limits::default()
    };
    Embedded::with(limits).await
}

/// Waits until a harness has noticed that the only call of its only worker is lost.
pub(crate) async fn assert_noticed(harness: &Embedded) {
    let admin = admin(&harness.connect().await);
    let is_away = || async {
        let mut admin = admin.clone();
        let workers = admin.list_workers(ListWorkersRequest::default());
        let told = within(SOON, workers).await.expect("it tells");
        told.into_inner().workers.is_empty()
    };
    eventually(SOON, "the call is lost", is_away).await;
}

/// A reply of this number.
async fn reply_with(slot: &RawSlot, request: &Request, worker_seq: u64, json: &str) {
    let outcome = reply::Outcome::Value(payload(json));
    slot.reply_as(request, worker_seq, outcome).await;
}

async fn stream(harness: &Embedded) -> Streaming<AskStreamResponse> {
    let asked = ask("echo", "1", AMPLE);
    let request = AskStreamRequest {
        agent: asked.agent,
        payload: asked.payload,
        options: asked.options,
    };
    let opened = runs(&harness.connect().await).ask_stream(request).await;
    opened.expect("the call opens").into_inner()
}

/// The lengths of the pieces of output, in the order of the journal.
fn pieces(entries: &[v1::JournalEntry]) -> Vec<usize> {
    let length = |entry| match kind_of(entry) {
        Some(entry::Kind::Output(output)) => {
            let quotes = 2;
            output.payload.as_ref().map(|it| it.data.len() - quotes)
        }
        _ => None,
    };
    entries.iter().filter_map(length).collect()
}

/// Reads a streamed ask to its end: what was told of the journal, and the reply.
async fn read(
    mut answers: Streaming<AskStreamResponse>,
) -> (Vec<v1::JournalEntry>, v1::StreamReply) {
    let (mut entries, mut run_id) = (Vec::new(), None);
    loop {
        let answer = within(SOON, answers.message()).await.expect("no error");
        match answer.expect("a reply first").event.expect("a known event") {
            ask_stream_response::Event::Run(run) => {
                assert!(run_id.replace(run.run_id).is_none(), "told once");
            }
            ask_stream_response::Event::Entry(entry) => entries.push(entry),
            ask_stream_response::Event::Heartbeat(_) => {}
            ask_stream_response::Event::Gap(gap) => panic!("a gap: {gap:?}"),
            ask_stream_response::Event::Reply(reply) => {
                let end = within(SOON, answers.message()).await.expect("no error");
                assert!(end.is_none(), "one reply, and then {end:?}");
                return (entries, reply);
            }
        }
    }
}

/// Has the call of a request cut twice, with entries before, between and after, and answers it.
async fn answer_over_cuts(harness: &Embedded, mut slot: RawSlot, hello: v1::Hello) -> Request {
    let request = slot.request().await;
    slot.send(output(&request, 1, 1)).await;
    slot.acknowledged(1).await;
    // Whether these arrive is open, so they are sent again.
    slot.send(output(&request, 2, 2)).await;
    slot.send(output(&request, 3, 3)).await;
    drop(slot);
    let again = RawSlot::resume(harness.connect().await, hello.clone(), &request);
    let (mut slot, stands) = again.await;
    assert!((1..=3).contains(&stands.last_worker_seq), "{stands:?}");
    let left: Duration = stands.time_left.expect("told").try_into().expect("some");
    assert!(left < AMPLE && left > AMPLE / 2, "{left:?}");
    for seq in stands.last_worker_seq + 1..=4 {
        slot.send(output(&request, seq, usize::try_from(seq).expect("small")))
            .await;
    }
    slot.acknowledged(4).await;
    drop(slot);
    assert_noticed(harness).await;
    let again = RawSlot::resume(harness.connect().await, hello, &request);
    let (mut slot, stands) = again.await;
    assert_eq!(stands.last_worker_seq, 4);
    // What is acknowledged may come again all the same.
    slot.send(output(&request, 4, 4)).await;
    slot.acknowledged(4).await;
    slot.send(output(&request, 5, 5)).await;
    reply_with(&slot, &request, 6, "\"done\"").await;
    // Its slot is free: it gets the next.
    let next = asking(harness, "echo", SOON).await;
    let request_of_next = slot.request().await;
    slot.reply(&request_of_next, "2").await;
    assert!(next.await.expect("no panic").is_ok());
    request
}

#[tokio::test]
async fn an_ask_whose_call_breaks_twice_is_answered_once_by_its_first_attempt() {
    let harness = waiting(WINDOW).await;
    let hello = full_hello("echo");
    let slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let asked = asking(&harness, "echo", AMPLE).await;
    let request = answer_over_cuts(&harness, slot, hello).await;
    let answer = asked.await.expect("no panic").expect("a reply");
    assert_eq!((&answer.run_id, answer.attempt), (&request.run_id, 1));
    assert_eq!(answer.payload.expect("a payload").data, "\"done\"");
    let entries = journal(&harness.connect().await, &request.run_id, SOON).await;
    assert_eq!(pieces(&entries), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_streamed_ask_whose_call_breaks_twice_brings_each_piece_once_and_in_order() {
    let harness = waiting(WINDOW).await;
    let hello = full_hello("echo");
    let slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let reading = tokio::spawn(read(stream(&harness).await));
    answer_over_cuts(&harness, slot, hello).await;
    let (entries, reply) = reading.await.expect("no panic");
    assert_eq!(pieces(&entries), [1, 2, 3, 4, 5]);
    assert!(
        entries.iter().all(|entry| entry.attempt <= 1),
        "{entries:?}"
    );
    assert_eq!(reply.attempt, 1);
    assert_eq!(reply.payload.expect("a payload").data, "\"done\"");
}

#[tokio::test]
async fn a_resume_of_an_ask_wins_over_a_call_that_only_seems_to_be_there() {
    let harness = waiting(WINDOW).await;
    let hello = full_hello("echo");
    let mut old = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let asked = asking(&harness, "echo", AMPLE).await;
    let request = old.request().await;
    old.send(output(&request, 1, 1)).await;
    old.acknowledged(1).await;
    let again = RawSlot::resume(harness.connect().await, hello, &request);
    let (new, stands) = again.await;
    assert_eq!(stands.last_worker_seq, 1);
    let end = old.end().await;
    let told = (end.code(), reason(&end));
    assert_eq!(told, (Code::Aborted, "SUPERSEDED".to_owned()));
    reply_with(&new, &request, 2, "2").await;
    let answer = asked.await.expect("no panic").expect("a reply");
    assert_eq!(answer.attempt, 1);
}

#[tokio::test]
async fn a_reply_that_was_taken_is_acknowledged_by_the_welcome_of_a_resume() {
    let harness = waiting(WINDOW).await;
    let hello = full_hello("echo");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let asked = asking(&harness, "echo", AMPLE).await;
    let request = slot.request().await;
    slot.send(output(&request, 1, 1)).await;
    reply_with(&slot, &request, 2, "1").await;
    // Taken, and nothing else was read by the worker.
    assert!(asked.await.expect("no panic").is_ok());
    drop(slot);
    let again = RawSlot::resume(harness.connect().await, hello, &request);
    let (mut slot, stands) = again.await;
    assert_eq!(stands.last_worker_seq, 2);
    let next = asking(&harness, "echo", AMPLE).await;
    let request = slot.request().await;
    slot.reply(&request, "2").await;
    assert!(next.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn what_the_caller_of_a_stream_has_not_read_is_not_acknowledged_by_a_resume() {
    const PIECE: usize = 30_000;
    let limits = Limits {
        interactive_reattach_window: WINDOW,
        heartbeat_interval: Duration::from_millis(100),
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let hello = full_hello("echo");
    let mut slot = RawSlot::attach(harness.connect().await, hello.clone()).await;
    let answers = stream(&harness).await;
    let request = slot.request().await;
    let (sent, acknowledged) = fill(&mut slot, &request, PIECE).await;
    assert!(acknowledged < sent, "{acknowledged} of {sent}");
    drop(slot);
    assert_noticed(&harness).await;

    let again = RawSlot::resume(harness.connect().await, hello, &request);
    let (mut slot, stands) = again.await;
    assert_eq!(stands.last_worker_seq, acknowledged);
    for seq in acknowledged + 1..=sent {
        slot.send(output(&request, seq, PIECE)).await;
    }
    let reading = tokio::spawn(read(answers));
    slot.acknowledged(sent).await;
    reply_with(&slot, &request, sent + 1, "1").await;
    let (entries, _) = reading.await.expect("no panic");
    assert_eq!(pieces(&entries).len() as u64, sent, "none lost, none twice");
}

/// Sends as much as the window allows, until nothing is acknowledged for ten heartbeats; gives how
/// many entries were sent and how many acknowledged.
async fn fill(slot: &mut RawSlot, request: &Request, characters: usize) -> (u64, u64) {
    let (mut sent, mut acknowledged, mut beats) = (0, 0, 0);
    while beats < 10 {
        while sent < acknowledged + 8 {
            sent += 1;
            slot.send(output(request, sent, characters)).await;
        }
        match slot.next().await {
            attach_response::Frame::Appended(appended) => {
                (acknowledged, beats) = (appended.worker_seq, 0);
            }
            attach_response::Frame::Heartbeat(_) => {
                beats += 1;
                let (run_id, attempt) = (request.run_id.clone(), request.attempt);
                slot.send(Frame::Heartbeat(WorkerHeartbeat { run_id, attempt }))
                    .await;
            }
            other => panic!("unexpected {other:?}"),
        }
        assert!(sent < 1_000, "held up long before {sent} entries");
    }
    (sent, acknowledged)
}

/// The window that a request tells, and an ask whose call is cut with that in hand.
async fn cut(
    harness: &Embedded,
    hello: v1::Hello,
) -> (Duration, JoinHandle<Result<v1::AskResponse, Status>>) {
    let mut slot = RawSlot::attach(harness.connect().await, hello).await;
    let asked = asking(harness, "echo", AMPLE).await;
    let window = slot.request().await.reattach_window.unwrap_or_default();
    (window.try_into().expect("a time"), asked)
}

#[tokio::test]
async fn a_request_tells_the_window_of_an_ask_which_is_0_by_default_and_then_a_cut_call_is_lost_at_once()
 {
    for (window, hello) in [
        (Duration::ZERO, full_hello("echo")),
        (WINDOW, hello("echo")),
        (WINDOW, full_hello("echo")),
    ] {
        let harness = match window.is_zero() {
            true => Embedded::start().await,
            false => waiting(window).await,
        };
        let comes_back = !window.is_zero() && hello.heartbeats;
        let (told, asked) = cut(&harness, hello).await;
        assert_eq!(told, if comes_back { window } else { Duration::ZERO });
        let start = Instant::now();
        if comes_back {
            assert_noticed(&harness).await;
            assert!(!asked.is_finished(), "its worker is waited for");
            continue;
        }
        let status = asked.await.expect("no panic").expect_err("lost");
        let _ = typed(&status, Code::Aborted, ErrorCode::WorkerLost);
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
}

/// That the reply of a request, which this slot holds, is its answer.
pub(crate) async fn assert_answers(
    slot: &RawSlot,
    request: &Request,
    asked: JoinHandle<Result<v1::AskResponse, Status>>,
) {
    slot.reply(request, "1").await;
    let answer = asked.await.expect("no panic").expect("a reply");
    assert_eq!(answer.attempt, request.attempt);
}
