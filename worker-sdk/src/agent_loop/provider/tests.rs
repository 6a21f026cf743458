//! A provider against servers that take their time, or repeat what they should not.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::agent_loop::response::Finish;
use crate::agent_loop::{Model as _, OpenAi, Pieces, Request};

/// A server that sends these pieces to whoever asks first, each after so long; its address.
async fn server(pieces: Vec<(Duration, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let (mut peer, _) = listener.accept().await.expect("a connection");
        let mut asked = [0; 4096];
        assert!(peer.read(&mut asked).await.expect("a request") > 0);
        for (wait, piece) in pieces {
            tokio::time::sleep(wait).await;
            // Who asked may have had enough.
            drop(peer.write_all(piece.as_bytes()).await);
        }
    });
    format!("http://{address}")
}

fn head(kind: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n")
}

fn model(url: &str) -> OpenAi {
    let model = OpenAi::new("m", "").expect("a model without a key");
    model.base_url(url).expect("an address")
}

#[tokio::test]
async fn a_whole_answer_may_take_longer_than_a_stream_may_be_silent() {
    let body = json!({"id": "c", "model": "m", "choices": [{"message": {"content": "done"}, "finish_reason": "stop"}]});
    let answer = head("application/json") + &body.to_string();
    let url = server(vec![(Duration::from_millis(400), answer)]).await;
    let model = model(&url).stall_timeout(Duration::from_millis(100));
    let mut request = Request::new("hello");
    request.stream = false;
    let answer = model.complete(&request, &mut Pieces::ignored()).await;
    assert_eq!(answer.expect("an answer").text(), "done");
}

#[tokio::test]
async fn the_keys_of_a_gateway_are_shown_nowhere() {
    let body = r#"{"error":{"message":"no: sk-gateway-1234567 code=sk-query-7654321"}}"#;
    let answer = head("application/json") + body;
    let url = server(vec![(Duration::ZERO, answer)]).await;
    let model = model(&format!(
        "{url}/v1?code=sk-query-7654321&api-version=2024-10-21"
    ))
    .header("Helicone-Auth", "Bearer sk-gateway-1234567")
    .and_then(|model| model.header("Ocp-Apim-Subscription-Key", "0123456789abcdef"))
    .expect("a model");
    let request = Request::new("hello");
    let error = model.complete(&request, &mut Pieces::ignored()).await;
    let shown = format!("{model:?} {:?}", error.expect_err("it says no"));
    for secret in ["sk-gateway", "0123456789abcdef", "sk-query"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}

#[tokio::test]
async fn an_answer_that_goes_on_behind_its_finish_reason_gets_its_time_back() {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        let chunk = json!({"id": "c", "model": "m", "choices": [choice]});
        format!("data: {chunk}\n\n")
    };
    let call = |arguments: &str| {
        let function = json!({"name": "x", "arguments": arguments});
        json!({"tool_calls": [{"index": 0, "id": "c1", "function": function}]})
    };
    // Together they take longer than what may come behind a finish reason.
    let slow = Duration::from_secs(3);
    let url = server(vec![
        (Duration::ZERO, head("text/event-stream")),
        (
            Duration::ZERO,
            chunk(json!({"content": "Let me."}), json!("stop")),
        ),
        (Duration::ZERO, chunk(call("{\"a\":"), Value::Null)),
        (slow, ": ping\n\n".to_owned()),
        (slow, chunk(call("1}"), json!("tool_calls"))),
        (Duration::ZERO, "data: [DONE]\n\n".to_owned()),
    ])
    .await;
    let request = Request::new("hello");
    let answer = model(&url).complete(&request, &mut Pieces::ignored()).await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.finish, Finish::ToolCalls);
    assert_eq!(answer.calls()[0].arguments, "{\"a\":1}");
}

#[tokio::test]
async fn a_whole_answer_has_no_more_parts_than_one_in_events() {
    let call =
        |at: u32| json!({"id": at.to_string(), "function": {"name": "x", "arguments": "{}"}});
    let calls: Vec<Value> = (0..2_001).map(call).collect();
    let body =
        json!({"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]});
    let answer = head("application/json") + &body.to_string();
    let url = server(vec![(Duration::ZERO, answer)]).await;
    let mut request = Request::new("hello");
    request.stream = false;
    let error = model(&url).complete(&request, &mut Pieces::ignored()).await;
    let error = error.expect_err("too many calls");
    assert!(error.message().contains("more than 2000 parts"), "{error}");
}
