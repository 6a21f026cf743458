//! Hostile and merely large schemas over a real socket: nobody but those who use one waits for it.

use std::time::{Duration, Instant};

use harness_proto::v1::{AgentInfo, ErrorCode, Hello, attach_request, reply};
use harness_tests::raw::{
    Embedded, RawSlot, SOON, ask, full_hello, hello, output, payload, reason, refused, runs, typed,
    within,
};
use serde_json::{Value, json};
use tonic::{Code, Status};

/// How long a harness lets one check go on.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

fn offering(request_schema: &str, reply_schema: &str, hello: Hello) -> Hello {
    let agent = hello.agent.expect("a hello offers an agent");
    Hello {
        agent: Some(AgentInfo {
            request_schema: request_schema.to_owned().into(),
            reply_schema: reply_schema.to_owned().into(),
            ..agent
        }),
        ..hello
    }
}

/// Two ways to fail at each level of nested arrays.
fn bomb() -> String {
    let way = |title: &str| json!({"title": title, "allOf": [{"items": {"$ref": "#"}}, {"contains": false}]});
    json!({"anyOf": [way("a"), way("b"), {"type": "integer"}]}).to_string()
}

/// Thousands of keywords for each item of an array.
fn slow() -> String {
    let wide: Vec<Value> = (0..2000).map(|n| json!({ "maximum": n + 10 })).collect();
    json!({"items": {"allOf": wide}}).to_string()
}

/// An array that takes `slow` tens of seconds.
fn long() -> String {
    json!(vec![1; 1_000_000]).to_string()
}

fn deep(levels: usize) -> String {
    format!("{}1{}", "[".repeat(levels), "]".repeat(levels))
}

fn tree() -> String {
    json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#"}},
        },
        "additionalProperties": false,
    })
    .to_string()
}

/// How a hello with this schema is refused.
async fn refused_hello(harness: &Embedded, hello: Hello) -> Status {
    let mut slot = RawSlot::open(harness.connect().await).await;
    slot.send(attach_request::Frame::Hello(hello)).await;
    slot.end().await
}

/// Asks an agent that has nothing to do with any schema, again and again, until `until`.
async fn innocents_are_answered_at_once(harness: &Embedded, until: Instant) {
    let mut slot = RawSlot::attach(harness.connect().await, hello("innocent")).await;
    let mut client = runs(&harness.connect().await);
    while Instant::now() < until {
        let answered = async {
            let (answer, ()) = tokio::join!(client.ask(ask("innocent", "1", SOON)), async {
                let request = slot.request().await;
                slot.reply(&request, "2").await;
            });
            answer.expect("an answer");
        };
        within(Duration::from_secs(1), answered).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_grows_without_end_is_refused_at_hello() {
    let harness = Embedded::start().await;
    let mut defs = serde_json::Map::new();
    for link in 0..27 {
        let next = json!({ "$ref": format!("#/$defs/{}", link + 1) });
        defs.insert(link.to_string(), json!({"allOf": [next, next]}));
    }
    defs.insert("27".to_owned(), json!({"type": "integer"}));
    let chain = json!({"$ref": "#/$defs/0", "$defs": Value::Object(defs)}).to_string();
    for (request, reply) in [(chain.as_str(), ""), ("", chain.as_str())] {
        let status = refused_hello(&harness, offering(request, reply, hello("chain"))).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains("written out"), "{status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_schema_that_checks_for_ever_harms_only_its_own_agent() {
    let harness = Embedded::start().await;
    let hostile = offering(&slow(), "", hello("hostile"));
    let mut slot = RawSlot::attach(harness.connect().await, hostile.clone()).await;
    let mut bystander = RawSlot::attach(
        harness.connect().await,
        offering(&slow(), "", hello("hostile")),
    )
    .await;
    let request = ask("hostile", &long(), Duration::from_secs(1));
    let start = Instant::now();
    let short = async {
        let status = refused(&harness, request).await;
        assert!(start.elapsed() < Duration::from_secs(2), "{status:?}");
        let _ = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    };
    let innocent = innocents_are_answered_at_once(&harness, start + CHECK_TIMEOUT * 2);
    tokio::join!(short, innocent);
    for slot in [&mut slot, &mut bystander] {
        let status = slot.end().await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(
            status.message().contains("agent.request_schema"),
            "{status:?}"
        );
        assert!(!reason(&status).is_empty());
    }
    let status = refused_hello(&harness, hostile).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains("took longer"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_has_the_time_learns_that_the_schema_was_too_slow() {
    let harness = Embedded::start().await;
    let hello = offering(&slow(), "", hello("hostile"));
    let mut slot = RawSlot::attach(harness.connect().await, hello).await;
    let request = ask("hostile", &long(), Duration::from_secs(30));
    let mut client = runs(&harness.connect().await);
    let status = within(Duration::from_secs(20), client.ask(request))
        .await
        .expect_err("a refusal");
    let error = typed(&status, Code::Internal, ErrorCode::ProtocolViolation);
    assert!(error.message.contains("\"hostile\""), "{}", error.message);
    assert_eq!(slot.end().await.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_schema_that_checks_for_ever_harms_only_its_own_agent() {
    let harness = Embedded::start().await;
    let hostile = offering("", &slow(), full_hello("hostile"));
    let mut slot = RawSlot::attach(harness.connect().await, hostile.clone()).await;
    let mut second = RawSlot::attach(
        harness.connect().await,
        offering("", &slow(), full_hello("hostile")),
    )
    .await;
    let reply = long();
    let start = Instant::now();
    let mut client = runs(&harness.connect().await);
    let short = client.ask(ask("hostile", "1", Duration::from_secs(1)));
    let mut other_client = runs(&harness.connect().await);
    let patient = other_client.ask(ask("hostile", "1", Duration::from_secs(30)));
    let workers = async {
        for slot in [&mut slot, &mut second] {
            let request = slot.request().await;
            slot.reply(&request, &reply).await;
        }
        for slot in [&mut slot, &mut second] {
            let status = slot.end().await.code();
            assert!(matches!(
                status,
                Code::DeadlineExceeded | Code::InvalidArgument
            ));
        }
    };
    let short = async {
        let status = short.await.expect_err("the deadline");
        assert!(start.elapsed() < Duration::from_secs(2), "{status:?}");
        let _ = typed(&status, Code::DeadlineExceeded, ErrorCode::DeadlineExceeded);
    };
    let patient = async {
        let status = within(Duration::from_secs(20), patient)
            .await
            .expect_err("a refusal");
        let error = typed(&status, Code::Internal, ErrorCode::ProtocolViolation);
        assert!(
            error.message.contains("agent.reply_schema"),
            "{}",
            error.message
        );
    };
    let innocent = innocents_are_answered_at_once(&harness, start + CHECK_TIMEOUT * 2);
    tokio::join!(workers, short, patient, innocent);
    let status = refused_hello(&harness, hostile).await;
    assert!(status.message().contains("took longer"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recursive_schema_that_doubles_at_each_level_is_answered_at_once() {
    let harness = Embedded::start().await;
    let hello = offering(&bomb(), &bomb(), hello("bomb"));
    let mut slot = RawSlot::attach(harness.connect().await, hello).await;
    let until = Instant::now() + Duration::from_secs(1);
    let asked = async {
        let status = refused(&harness, ask("bomb", &deep(100), Duration::from_secs(1))).await;
        assert!(Instant::now() < until + Duration::from_secs(1));
        let _ = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
    };
    tokio::join!(asked, innocents_are_answered_at_once(&harness, until));
    let mut client = runs(&harness.connect().await);
    let (answer, ()) = tokio::join!(client.ask(ask("bomb", "1", SOON)), async {
        let request = slot.request().await;
        slot.reply(&request, &deep(100)).await;
    });
    let status = answer.expect_err("a bad reply reaches nobody");
    let _ = typed(&status, Code::Internal, ErrorCode::InvalidReply);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_recursive_schema_works_both_ways() {
    let harness = Embedded::start().await;
    let hello = offering(&tree(), &tree(), hello("tree"));
    let mut slot = RawSlot::attach(harness.connect().await, hello).await;
    let mut client = runs(&harness.connect().await);
    let good = json!({"name": "a", "children": [{"name": "b", "children": []}]}).to_string();
    for _ in 0..20 {
        let (answer, ()) = tokio::join!(client.ask(ask("tree", &good, SOON)), async {
            let request = slot.request().await;
            slot.reply(&request, &good).await;
        });
        answer.expect("an answer");
    }
    let bad = json!({"name": "a", "children": [{"name": 5}]}).to_string();
    let status = refused(&harness, ask("tree", &bad, SOON)).await;
    let error = typed(&status, Code::InvalidArgument, ErrorCode::InvalidRequest);
    assert!(
        error.message.contains("/children/0/name"),
        "{}",
        error.message
    );
    let (answer, ()) = tokio::join!(client.ask(ask("tree", &good, SOON)), async {
        let request = slot.request().await;
        slot.reply(&request, &bad).await;
    });
    let status = answer.expect_err("a bad reply reaches nobody");
    let _ = typed(&status, Code::Internal, ErrorCode::InvalidReply);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_keep_their_order_when_replies_are_checked_apart() {
    let harness = Embedded::start().await;
    let hello = offering("", &tree(), full_hello("tree"));
    let mut slot = RawSlot::attach(harness.connect().await, hello).await;
    let mut client = runs(&harness.connect().await);
    let leaves: Vec<Value> = (0..20_000).map(|_| json!({"name": "leaf"})).collect();
    let large = json!({"name": "root", "children": leaves}).to_string();
    for _ in 0..3 {
        let (answer, ()) = tokio::join!(client.ask(ask("tree", "1", SOON)), async {
            let request = slot.request().await;
            slot.send(output(&request, 1, 10)).await;
            slot.send(output(&request, 2, 10)).await;
            slot.reply_as(&request, 3, reply::Outcome::Value(payload(&large)))
                .await;
        });
        let answer = answer.expect("an answer").into_inner();
        assert_eq!(answer.payload.expect("a payload").data.len(), large.len());
    }
    // What follows the reply is taken after it.
    let (answer, ()) = tokio::join!(client.ask(ask("tree", "1", SOON)), async {
        let request = slot.request().await;
        slot.reply_as(&request, 1, reply::Outcome::Value(payload(&large)))
            .await;
        slot.send(attach_request::Frame::Leave(
            harness_proto::v1::Leave::default(),
        ))
        .await;
        slot.half_close();
    });
    answer.expect("an answer");
    slot.end_within(SOON).await.expect("OK");
}
