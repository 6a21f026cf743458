//! What comes back: values and errors, one and many, small and large.

use harness_proto::v1::ErrorCode;
use harness_tests::{Asker, Harness, Worker};
use serde_json::{Value, json};
use tonic::Code;

use crate::{AMPLE, Kind, millis, reply, started};

with_each_worker! {
    a_question_is_answered,
    the_agent_learns_what_came_beside_the_request,
    the_agents_error_comes_back_typed,
    every_answer_belongs_to_its_question,
    two_callers_with_the_same_ids_get_their_own_answers,
    a_million_bytes_of_unicode_survive,
}

fn a_question_is_answered(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    for value in [json!("hello"), json!({"a": [1, null, true]}), json!(null)] {
        assert_eq!(asker.ask(&reply(value.clone()), AMPLE).json(), value);
    }
}

fn the_agent_learns_what_came_beside_the_request(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let told = asker.ask(&json!({"do": "context"}), millis(9_000)).json();
    assert_eq!(told["run_id"], started(worker.process())[0]);
    assert_eq!(told["attempt"], 1);
    let left = told["time_left_ms"].as_u64().expect("a number");
    assert!((8_000..=9_000).contains(&left), "{left}");
}

fn the_agents_error_comes_back_typed(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let order = json!({"do": "fail", "type": "TooHot", "message": "94 °C, at most 90"});
    let answer = asker.ask(&order, AMPLE);
    let error = answer.error_at_once(Code::Unknown, ErrorCode::AgentError);
    assert_eq!(
        (error.r#type.as_str(), error.message.as_str()),
        ("TooHot", "94 °C, at most 90")
    );
    assert_eq!(
        (&error.run_id, error.attempt),
        (&started(worker.process())[0], 1)
    );
    assert_eq!(asker.ask(&reply(1), AMPLE).json(), 1);
}

fn every_answer_belongs_to_its_question(kind: Kind) {
    let harness = Harness::start();
    let mut worker = kind.puppet().slots(4).start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let asked: Vec<_> = (0..200)
        .map(|number| asker.start(&reply(format!("question {number}")), AMPLE))
        .collect();
    for (number, asking) in asked.into_iter().enumerate() {
        let answer = asking.answer().json();
        assert_eq!(answer, format!("question {number}"));
    }
    assert_eq!(started(worker.process()).len(), 200);
}

fn two_callers_with_the_same_ids_get_their_own_answers(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().slots(4).start(&harness);
    // The same tags at the same time, with whatever else a caller could take for an id.
    let metadata = [("request-id", "1"), ("session", "a")];
    let answers = |caller: &str| {
        let asker = Asker::new(&harness, "puppet");
        let tagged: Vec<_> = (0..100)
            .map(|tag| (tag, reply(format!("{caller} asks {tag}"))))
            .collect();
        asker.many(&tagged, &metadata, AMPLE)
    };
    let (one, other) = std::thread::scope(|scope| {
        let one = scope.spawn(|| answers("one"));
        let other = answers("the other");
        (one.join().expect("no panic"), other)
    });
    let mut runs = std::collections::HashSet::new();
    for (caller, answers) in [("one", one), ("the other", other)] {
        assert_eq!(answers.len(), 100, "one answer a tag");
        for (tag, run_id, value) in answers {
            assert_eq!(value, format!("{caller} asks {tag}"));
            assert!(runs.insert(run_id), "two runs have one id");
        }
    }
}

/// Every plane of Unicode, and what JSON escapes.
fn million_bytes() -> String {
    let piece = "a\u{0}\n\"\\/\u{7f}é\u{2028}漢\u{feff}\u{fffd}😀\u{10ffff}";
    piece.repeat(1_000_000 / piece.len() + 1)
}

fn a_million_bytes_of_unicode_survive(kind: Kind) {
    let harness = Harness::start();
    let _worker = kind.puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let sent = million_bytes();
    assert!(sent.len() >= 1_000_000);
    let Value::String(received) = asker.ask(&reply(sent.as_str()), AMPLE).json() else {
        panic!("a string was sent");
    };
    // Not assert_eq, which would print both.
    assert!(received == sent, "the text came back changed");
}

#[test]
fn a_million_bytes_of_json_reach_a_raw_agent_and_come_back_as_they_were() {
    let harness = Harness::start();
    let _echo = Worker::start(&harness, "echo");
    let text = serde_json::to_string(&million_bytes()).expect("a string is JSON");
    // Spaces, order, repeated keys, escapes and numbers that a parser would write otherwise.
    let sent = format!("{{ \"b\" : {text},\n\t\"a\": 1.50e+2, \"a\": \"\\u00e9\\/\" }} ");
    let received = Asker::new(&harness, "echo").ask_text(&sent, AMPLE).bytes();
    assert!(received == sent, "the bytes came back changed");
}
