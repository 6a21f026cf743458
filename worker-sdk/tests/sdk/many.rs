//! Many asks on one call, from the caller's side.

use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::ask_many_request::Frame;
use harness_proto::v1::outcome::Outcome;
use tokio::task::JoinSet;
use tonic::{Code, Status};
use worker_sdk::client::Many;
use worker_sdk::{Answer, Error, ErrorKind, Harness};

use crate::fake::{Fake, ManyAsked, Told, ours, within};

fn value(json: &str) -> Outcome {
    Outcome::Value(v1::Payload {
        content_type: String::new(),
        data: json.to_owned().into(),
    })
}

async fn open(max_open: u32) -> (Fake, ManyAsked, Many) {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let opening = tokio::spawn(async move { harness.ask_many().await });
    let Some(Told::Many(call)) = within("call", fake.told.recv()).await else {
        panic!("AskMany")
    };
    call.window(max_open).await;
    let many = within("window", opening).await.unwrap().unwrap();
    assert_eq!(many.window(), max_open as usize);
    (fake, call, many)
}

type Asking = JoinSet<Result<Answer<u64>, Error>>;

fn ask(asking: &mut Asking, many: &Many, number: u64) {
    asking.spawn(many.ask("count", number).into_future());
}

async fn answered(asking: &mut Asking) -> Result<Answer<u64>, Error> {
    within("answer", asking.join_next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn each_ask_gets_its_own_answer_in_any_order() {
    let (_fake, mut call, many) = open(8).await;
    let mut asking = Asking::new();
    ask(&mut asking, &many, 1);
    let first = call.ask().await;
    ask(&mut asking, &many, 2);
    let second = call.ask().await;
    assert_eq!(
        (first.agent.as_str(), &*first.payload.unwrap().data),
        ("count", &b"1"[..])
    );
    assert_eq!(first.options.unwrap().timeout.unwrap().seconds, 60);
    call.answer(second.tag, value("22")).await;
    let answer = answered(&mut asking).await.unwrap();
    assert_eq!(
        (answer.value, answer.run_id),
        (22, format!("run {}", second.tag))
    );
    let told = v1::Error {
        code: v1::ErrorCode::Busy.into(),
        message: "full".to_owned(),
        ..Default::default()
    };
    call.answer(first.tag, Outcome::Error(told)).await;
    let error = answered(&mut asking).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.run_id()),
        (ErrorKind::Busy, &*format!("run {}", first.tag))
    );
}

#[tokio::test]
async fn an_ask_waits_for_room_and_the_wait_is_part_of_its_timeout() {
    let (_fake, mut call, many) = open(1).await;
    let mut asking = Asking::new();
    ask(&mut asking, &many, 1);
    let first = call.ask().await;
    let late = many
        .ask::<u64>("count", &2)
        .timeout(Duration::from_millis(20));
    let error = within("no room", late.into_future()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    assert!(error.message().contains("no room"), "{error}");
    ask(&mut asking, &many, 3);
    call.answer(first.tag, value("1")).await;
    assert_eq!(answered(&mut asking).await.unwrap().value, 1);
    let third = call.ask().await;
    assert_eq!(third.payload.unwrap().data, "3");
    let left = third.options.unwrap().timeout.unwrap();
    assert!(left.seconds < 60, "{left:?}");
    call.answer(third.tag, value("3")).await;
    assert_eq!(answered(&mut asking).await.unwrap().value, 3);
}

#[tokio::test]
async fn dropping_an_ask_cancels_its_tag_which_keeps_its_room_until_answered() {
    let (_fake, mut call, many) = open(1).await;
    let mut dropped = Asking::new();
    ask(&mut dropped, &many, 1);
    let first = call.ask().await;
    dropped.shutdown().await;
    let cancel = call.frame().await;
    assert!(
        matches!(cancel, Some(Frame::Cancel(it)) if it.tag == first.tag),
        "{cancel:?}"
    );
    let mut asking = Asking::new();
    ask(&mut asking, &many, 2);
    call.answer(first.tag, value("1")).await;
    let second = call.ask().await;
    assert_ne!(second.tag, first.tag);
    call.answer(second.tag, value("2")).await;
    assert_eq!(answered(&mut asking).await.unwrap().value, 2);
}

#[tokio::test]
async fn the_call_is_half_closed_when_the_last_handle_and_the_last_ask_are_gone() {
    let (_fake, mut call, many) = open(4).await;
    let mut asking = Asking::new();
    ask(&mut asking, &many.clone(), 1);
    drop(many);
    let first = call.ask().await;
    call.answer(first.tag, value("1")).await;
    assert_eq!(answered(&mut asking).await.unwrap().value, 1);
    assert!(call.frame().await.is_none());
}

#[tokio::test]
async fn a_call_that_breaks_fails_every_ask_on_it_now_and_later() {
    let (_fake, mut call, many) = open(1).await;
    let mut asking = Asking::new();
    ask(&mut asking, &many, 1);
    let _ = call.ask().await;
    ask(&mut asking, &many, 2);
    let end = ours(Code::Unavailable, "LEAVING");
    call.answers.send(Err(end)).await.unwrap();
    for _ in 0..2 {
        let error = answered(&mut asking).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
    }
    ask(&mut asking, &many, 3);
    let error = answered(&mut asking).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transport, "{error}");
}

#[tokio::test]
async fn an_ask_the_harness_leaves_unanswered_is_given_up_and_cancelled() {
    let (_fake, mut call, many) = open(1).await;
    let late = many
        .ask::<u64>("count", &1)
        .timeout(Duration::from_millis(10));
    let late = tokio::spawn(late.into_future());
    let first = call.ask().await;
    let error = within("the end", late).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    let cancel = call.frame().await;
    assert!(
        matches!(cancel, Some(Frame::Cancel(it)) if it.tag == first.tag),
        "{cancel:?}"
    );
}

#[tokio::test]
async fn a_harness_that_does_not_know_the_call_says_so() {
    let mut fake = Fake::start().await;
    let harness = Harness::connect(&fake.address).await.unwrap();
    let opening = tokio::spawn(async move { harness.ask_many().await });
    let Some(Told::Many(call)) = within("call", fake.told.recv()).await else {
        panic!("AskMany")
    };
    let refusal = Status::unimplemented("not yet");
    call.answers.send(Err(refusal)).await.unwrap();
    let error = within("refusal", opening).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unimplemented);
}
