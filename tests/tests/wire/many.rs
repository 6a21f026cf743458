//! Many asks on one call, over a real socket.

use harness_proto::v1::{
    self, AskManyRequest, CancelTag, ErrorCode, TaggedAsk, ask_many_request, ask_many_response,
    outcome,
};
use harness_server::Limits;
use harness_tests::raw::{
    Embedded, RawSlot, SOON, ask, hello as minimal, reason, runs, typed, within,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

/// One AskMany call.
struct Many {
    frames: Option<mpsc::Sender<AskManyRequest>>,
    answers: Streaming<v1::AskManyResponse>,
    max_open: u32,
}

impl Many {
    async fn open(harness: &Embedded) -> Self {
        let (frames, outbound) = mpsc::channel(64);
        let mut client = runs(&harness.connect().await);
        let call = client.ask_many(ReceiverStream::new(outbound));
        let mut answers = within(SOON, call).await.expect("open").into_inner();
        let first = within(SOON, answers.message())
            .await
            .expect("no error")
            .expect("window");
        let Some(ask_many_response::Frame::Window(window)) = first.frame else {
            panic!("window comes first: {first:?}")
        };
        Self {
            frames: Some(frames),
            answers,
            max_open: window.max_open,
        }
    }

    async fn send(&self, frame: ask_many_request::Frame) {
        let frames = self.frames.as_ref().expect("open");
        let frame = AskManyRequest { frame: Some(frame) };
        frames.send(frame).await.expect("the call takes frames");
    }

    async fn ask(&self, tag: u64, agent: &str) {
        let one = ask(agent, &tag.to_string(), SOON);
        self.send(ask_many_request::Frame::Ask(TaggedAsk {
            tag,
            agent: one.agent,
            payload: one.payload,
            options: one.options,
        }))
        .await;
    }

    async fn answer(&mut self) -> v1::Answer {
        let message = within(SOON, self.answers.message())
            .await
            .expect("no error");
        match message.expect("an answer").frame {
            Some(ask_many_response::Frame::Answer(answer)) => answer,
            other => panic!("expected an answer, got {other:?}"),
        }
    }
}

fn code(answer: &v1::Answer) -> Option<ErrorCode> {
    match answer.outcome.as_ref()?.outcome.as_ref()? {
        outcome::Outcome::Error(error) => Some(error.code()),
        outcome::Outcome::Value(_) => None,
    }
}

#[tokio::test]
async fn many_asks_are_answered_in_the_order_they_complete_and_then_the_call_ends_ok() {
    let harness = Embedded::start().await;
    let mut first = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut second = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut many = Many::open(&harness).await;
    assert_eq!(many.max_open, 256);
    many.ask(1, "s").await;
    let one = first.request().await;
    many.ask(2, "s").await;
    let two = second.request().await;
    many.ask(3, "unknown-agent").await;
    let answer = many.answer().await;
    assert_eq!(
        (answer.tag, code(&answer)),
        (3, Some(ErrorCode::UnknownAgent))
    );
    second.reply(&two, "22").await;
    let answer = many.answer().await;
    assert_eq!(
        (answer.tag, &answer.run_id, answer.attempt),
        (2, &two.run_id, 1)
    );
    many.frames = None;
    first.reply(&one, "11").await;
    assert_eq!(many.answer().await.tag, 1);
    assert!(
        within(SOON, many.answers.message())
            .await
            .expect("OK")
            .is_none()
    );
}

#[tokio::test]
async fn one_of_many_can_be_cancelled_and_is_still_answered_once() {
    let harness = Embedded::start().await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut many = Many::open(&harness).await;
    many.ask(7, "s").await;
    let _ = slot.request().await;
    many.send(ask_many_request::Frame::Cancel(CancelTag { tag: 7 }))
        .await;
    many.send(ask_many_request::Frame::Cancel(CancelTag { tag: 99 }))
        .await;
    let answer = many.answer().await;
    assert_eq!((answer.tag, code(&answer)), (7, Some(ErrorCode::Cancelled)));
    assert_eq!(reason(&slot.end().await), "CANCELLED");
    // The tag is free again.
    many.ask(7, "unknown-agent").await;
    assert_eq!(many.answer().await.tag, 7);
}

#[tokio::test]
async fn beyond_the_window_many_is_busy_and_an_open_tag_again_ends_the_call() {
    let limits = Limits {
        many_window: 2,
        ..Limits::default()
    };
    let harness = Embedded::with(limits).await;
    let mut slot = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut many = Many::open(&harness).await;
    many.ask(1, "s").await;
    let _ = slot.request().await;
    many.ask(2, "s").await;
    many.ask(3, "s").await;
    let answer = many.answer().await;
    assert_eq!((answer.tag, code(&answer)), (3, Some(ErrorCode::Busy)));
    many.ask(1, "s").await;
    let status = within(SOON, many.answers.message())
        .await
        .expect_err("ended");
    let _ = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
    assert_eq!(reason(&slot.end().await), "CANCELLED");
}

#[tokio::test]
async fn ending_a_call_of_many_cancels_them_all() {
    let harness = Embedded::start().await;
    let mut first = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let mut second = RawSlot::attach(harness.connect().await, minimal("s")).await;
    let many = Many::open(&harness).await;
    many.ask(1, "s").await;
    many.ask(2, "s").await;
    let _ = first.request().await;
    let _ = second.request().await;
    drop(many);
    assert_eq!(reason(&first.end().await), "CANCELLED");
    assert_eq!(reason(&second.end().await), "CANCELLED");
}
