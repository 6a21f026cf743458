//! Requests, replies, output and its window.

use std::time::Duration;

use harness_proto::v1;
use harness_proto::v1::attach_response::Frame as Out;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tonic::Code;
use worker_sdk::context::LogLevel;
use worker_sdk::{AgentError, Context, ErrorKind, Payload, agent_fn};

use crate::fake::{Fake, ours, released, within};
use crate::subject::{builder, start};

#[derive(Deserialize, JsonSchema)]
struct Question {
    text: String,
}

#[derive(Serialize, JsonSchema)]
struct Reply {
    length: usize,
}

async fn measure(ctx: Context, question: Question) -> Result<Reply, AgentError> {
    assert_eq!(ctx.metadata()["tenant"], "a");
    assert!(ctx.time_left() > Duration::from_secs(20));
    Ok(Reply {
        length: question.text.len(),
    })
}

#[tokio::test]
async fn a_worker_says_who_it_is_and_answers_one_request_after_the_other() {
    let mut fake = Fake::start().await;
    let _worker = start(
        builder(agent_fn(measure), &fake.address)
            .version("7")
            .label("gpu", "a"),
    );
    let mut call = fake.welcomed().await;
    let hello = &call.hello;
    assert_eq!((hello.protocol_version, hello.heartbeats), (1, true));
    assert_eq!(hello.max_receive_bytes, 4 << 20);
    assert!(hello.previous.is_none());
    let (worker, agent) = (
        hello.worker.as_ref().unwrap(),
        hello.agent.as_ref().unwrap(),
    );
    assert_eq!(worker.worker_id.len(), 36);
    assert_eq!(worker.pid, std::process::id());
    assert_eq!(worker.labels["gpu"], "a");
    assert_eq!(
        (agent.name.as_str(), agent.version.as_str()),
        ("subject", "7")
    );
    let schema: serde_json::Value = serde_json::from_slice(&agent.request_schema).unwrap();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert_eq!(schema["properties"]["text"]["type"], "string");
    let schema: serde_json::Value = serde_json::from_slice(&agent.reply_schema).unwrap();
    assert_eq!(schema["required"][0], "length");

    for (run_id, text) in [("one", "abc"), ("two", "")] {
        call.request(run_id, &format!("{{\"text\":\"{text}\"}}"))
            .await;
        let reply = call.reply().await;
        assert_eq!(
            (reply.run_id.as_str(), reply.attempt, reply.worker_seq),
            (run_id, 1, 1)
        );
        let Some(v1::reply::Outcome::Value(value)) = reply.outcome else {
            panic!("{:?}", reply.outcome);
        };
        assert_eq!(value.content_type, "application/json");
        assert_eq!(value.data, format!("{{\"length\":{}}}", text.len()));
    }
}

#[tokio::test]
async fn a_raw_agent_has_no_schema_and_gets_the_bytes_that_came() {
    let mut fake = Fake::start().await;
    let echo = agent_fn(|_, request: Payload| async move { Ok(request) });
    let _worker = start(builder(echo, &fake.address));
    let mut call = fake.welcomed().await;
    let agent = call.hello.agent.clone().unwrap();
    assert!(agent.request_schema.is_empty() && agent.reply_schema.is_empty());
    call.request("run", "not json").await;
    assert_eq!(call.value().await, "not json");
}

#[tokio::test]
async fn what_an_agent_cannot_take_or_does_is_answered_with_a_typed_error() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|_, number: i64| async move {
        match number {
            0 => panic!("zero it is"),
            1 => Err(AgentError::new("Odd", "an odd number")
                .retryable()
                .details(&number)),
            2 => Err("x".parse::<u32>().unwrap_err().into()),
            _ => Ok(()),
        }
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    for (json, code, error_type, message, retryable) in [
        (
            "\"text\"",
            v1::ErrorCode::InvalidRequest,
            "",
            "expected i64",
            false,
        ),
        ("0", v1::ErrorCode::AgentError, "panic", "zero it is", false),
        ("1", v1::ErrorCode::AgentError, "Odd", "an odd number", true),
        (
            "2",
            v1::ErrorCode::AgentError,
            "ParseIntError",
            "invalid digit",
            false,
        ),
    ] {
        call.request("run", json).await;
        let error = call.error().await;
        assert_eq!(error.code(), code, "{json}");
        assert_eq!(error.r#type, error_type);
        assert!(error.message.contains(message), "{}", error.message);
        assert_eq!(error.retryable, retryable);
    }
}

#[tokio::test]
async fn a_reply_over_the_limit_is_the_harness_to_refuse() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|_, (): ()| async { Ok("x".repeat(2_000)) });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.call().await;
    let limits = v1::SlotLimits {
        payload_bytes: 1_000,
        ..Default::default()
    };
    call.welcome_with(Duration::from_secs(5), limits).await;
    call.request("run", "null").await;
    assert_eq!(call.value().await.len(), 2_002);
    call.end(ours(Code::ResourceExhausted, "FRAME_TOO_LARGE"))
        .await;
    assert!(released(&fake.call().await).is_some());
}

#[tokio::test]
async fn output_waits_for_the_window_and_goes_on_when_it_opens() {
    let mut fake = Fake::start().await;
    let (sent, mut sends) = mpsc::channel(16);
    let agent = agent_fn(move |ctx: Context, count: u32| {
        let sent = sent.clone();
        async move {
            for piece in 0..count {
                ctx.output(piece).await?;
                sent.send(piece).await?;
            }
            Ok(count)
        }
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.call().await;
    let limits = v1::SlotLimits {
        unacked_entries: 2,
        ..Default::default()
    };
    call.welcome_with(Duration::from_secs(5), limits).await;
    call.request("run", "5").await;
    for seq in 1..=2 {
        assert_eq!(call.append().await.worker_seq, seq);
        within("send", sends.recv()).await;
    }
    // Two are out: the third waits, although the call is idle long enough to have sent it.
    let early = tokio::time::timeout(Duration::from_millis(50), call.frame()).await;
    assert!(early.is_err() && sends.is_empty(), "{early:?}");
    call.send(Out::Appended(v1::Appended { worker_seq: 1 }))
        .await;
    assert_eq!(call.append().await.worker_seq, 3);
    call.send(Out::Appended(v1::Appended { worker_seq: 3 }))
        .await;
    for seq in 4..=5 {
        assert_eq!(call.append().await.worker_seq, seq);
    }
    let reply = call.reply().await;
    assert_eq!(reply.worker_seq, 6, "a reply needs no room");
}

#[tokio::test]
async fn output_progress_and_log_are_entries_and_too_large_a_piece_is_the_agents_error() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|ctx: Context, (): ()| async move {
        ctx.output(Payload::text("piece")).await?;
        ctx.progress(7.0, "over").await?;
        ctx.log(LogLevel::Warn, "careful").await?;
        let error = ctx.output("x".repeat(2_000)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PayloadTooLarge);
        Ok(error.to_string())
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.call().await;
    let limits = v1::SlotLimits {
        entry_bytes: 1_000,
        ..Default::default()
    };
    call.welcome_with(Duration::from_secs(5), limits).await;
    call.request("run", "null").await;
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(call.append().await.entry.unwrap().kind.unwrap());
    }
    use v1::entry::Kind;
    let [
        Kind::Output(output),
        Kind::Progress(progress),
        Kind::Log(log),
    ] = kinds.as_slice()
    else {
        panic!("{kinds:?}");
    };
    assert_eq!(output.payload.as_ref().unwrap().data, "piece");
    assert_eq!(
        (progress.fraction, progress.message.as_str()),
        (1.0, "over")
    );
    assert_eq!(
        (log.level(), log.message.as_str()),
        (v1::LogLevel::Warn, "careful")
    );
    assert!(call.value().await.contains("may have 1000"));
}

#[tokio::test]
async fn a_worker_with_no_limit_of_its_own_or_a_tiny_one_is_welcomed() {
    for (bytes, said) in [(0, 4 << 20), (1, 1)] {
        let mut fake = Fake::start().await;
        let agent = agent_fn(|_, (): ()| async { Ok(()) });
        let _worker = start(builder(agent, &fake.address).max_receive_bytes(bytes));
        let mut call = fake.welcomed().await;
        assert_eq!(call.hello.max_receive_bytes, said);
        call.request("run", "null").await;
        assert_eq!(call.value().await, "null");
    }
}

#[tokio::test]
async fn a_hold_withholds_the_reply() {
    let mut fake = Fake::start().await;
    let (held, mut holds) = mpsc::channel(1);
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let held = held.clone();
        async move { Ok(held.send(ctx.hold()).await?) }
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    let hold = within("hold", holds.recv()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(50), call.frame()).await;
    assert!(early.is_err(), "it replied while the slot was held");
    drop(hold);
    assert_eq!(call.value().await, "null");
}

#[tokio::test]
async fn an_agent_asks_another_within_what_is_left_of_its_deadline() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|ctx: Context, text: String| async move {
        let answer = ctx
            .ask::<String>("other", text)
            .timeout(Duration::from_secs(600))
            .await?;
        Ok(answer.value)
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "\"hi\"").await;
    let asked = within("ask", fake.asks.recv()).await.unwrap();
    assert_eq!(asked.request.agent, "other");
    let options = asked.request.options.unwrap();
    let timeout = options.timeout.unwrap();
    assert!((25..=30).contains(&timeout.seconds), "{timeout:?}");
    let parent = options.parent.unwrap();
    assert_eq!((parent.run_id.as_str(), parent.attempt), ("run", 1));
    let payload = v1::Payload {
        content_type: String::new(),
        data: "\"there\"".into(),
    };
    let answer = v1::AskResponse {
        run_id: "r".to_owned(),
        payload: Some(payload),
        attempt: 1,
    };
    asked.answer.send(Ok(answer)).unwrap();
    assert_eq!(call.value().await, "\"there\"");
}

#[tokio::test]
async fn a_stop_hangs_up_on_the_agent_that_was_asked() {
    let mut fake = Fake::start().await;
    let agent = agent_fn(|ctx: Context, text: String| async move {
        Ok(ctx.ask::<String>("other", text).await?.value)
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "\"hi\"").await;
    let mut asked = within("ask", fake.asks.recv()).await.unwrap();
    call.end(ours(Code::Cancelled, "CANCELLED")).await;
    within("hang-up", asked.answer.closed()).await;
    assert!(released(&fake.call().await).is_some());
}

#[tokio::test]
async fn a_hold_keeps_the_slot_away_after_the_future_was_dropped() {
    let mut fake = Fake::start().await;
    let (held, mut holds) = mpsc::channel(1);
    let agent = agent_fn(move |ctx: Context, (): ()| {
        let held = held.clone();
        async move {
            held.send(ctx.hold()).await?;
            std::future::pending::<()>().await;
            Ok(())
        }
    });
    let _worker = start(builder(agent, &fake.address));
    let mut call = fake.welcomed().await;
    call.request("run", "null").await;
    let hold = within("hold", holds.recv()).await.unwrap();
    call.end(ours(Code::DeadlineExceeded, "DEADLINE")).await;
    let early = tokio::time::timeout(Duration::from_millis(50), fake.call()).await;
    assert!(early.is_err(), "the slot came back while it was held");
    drop(hold);
    assert!(released(&fake.call().await).is_some());
}
