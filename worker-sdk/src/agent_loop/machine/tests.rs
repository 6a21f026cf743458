//! The machine, fed by hand.

mod budgets;

use serde_json::{Value, json};

use super::*;
use crate::agent_loop::budget::BytesOverThree;
use crate::agent_loop::message::Block;
use crate::agent_loop::pairs;
use crate::agent_loop::response::{Finish, Response, Usage};

const COUNTER: BytesOverThree = BytesOverThree;

fn machine(rules: Rules) -> Machine {
    Machine::new(rules, vec![Message::user("do it")], 100, &COUNTER)
}

fn answer(finish: Finish, blocks: Vec<Block>) -> Response {
    Response {
        id: "r".to_owned(),
        provider: "scripted".to_owned(),
        model: "m".to_owned(),
        answered_by: "m".to_owned(),
        finish,
        finish_raw: String::new(),
        blocks,
        raw: vec![Value::Null],
        usage: Usage::default(),
        note: None,
    }
}

fn text(text: &str) -> Block {
    Block::Text {
        text: text.to_owned(),
    }
}

fn call(id: &str, name: &str, arguments: &Value) -> Block {
    Block::Call(Call {
        id: id.to_owned(),
        name: name.to_owned(),
        arguments: arguments.to_string(),
    })
}

fn ask(machine: &mut Machine, calls: Vec<Block>) -> Vec<Planned> {
    assert!(
        matches!(machine.next(), Next::CallModel(_)),
        "{:?}",
        machine.next()
    );
    machine.model_response(answer(Finish::ToolCalls, calls), &COUNTER);
    match machine.next() {
        Next::RunTools(planned) => planned,
        Next::Done(_) => Vec::new(),
        other @ (Next::Compact(_) | Next::CallModel(_)) => panic!("{other:?}"),
    }
}

fn give(machine: &mut Machine, planned: &[Planned], outcome: ToolOutcome, text: &str) {
    let results = planned.iter().map(|planned| ToolResult {
        call_id: planned.call.id.clone(),
        text: text.to_owned(),
        outcome,
    });
    machine.tool_results(results.collect(), &COUNTER);
}

fn end(machine: &Machine) -> End {
    match machine.next() {
        Next::Done(end) => end,
        other @ (Next::Compact(_) | Next::CallModel(_) | Next::RunTools(_)) => {
            panic!("not ended: {other:?}")
        }
    }
}

#[test]
fn a_run_is_calls_and_results_until_the_answer() {
    let mut machine = machine(Rules::default());
    let planned = ask(
        &mut machine,
        vec![text("let me see"), call("a", "look", &json!({}))],
    );
    give(&mut machine, &planned, ToolOutcome::Done, "7");
    machine.model_response(answer(Finish::Stop, vec![text("seven")]), &COUNTER);
    assert_eq!(end(&machine), End::answered("seven".to_owned()));
    let messages = machine.messages();
    assert_eq!(messages.len(), 4);
    assert!(pairs::are_whole(&messages));
    assert_eq!((machine.turns(), machine.tool_calls()), (2, 1));
}

#[test]
fn an_empty_answer_after_a_result_is_legal_and_flagged() {
    let mut machine = machine(Rules::default());
    let planned = ask(&mut machine, vec![call("a", "look", &json!({}))]);
    give(&mut machine, &planned, ToolOutcome::Done, "7");
    machine.model_response(answer(Finish::Stop, vec![]), &COUNTER);
    let End::Answered { text, is_empty } = end(&machine) else {
        panic!("{:?}", end(&machine));
    };
    assert!(text.is_empty() && is_empty);
    assert!(pairs::are_whole(&machine.messages()));
}

#[test]
fn the_same_records_give_the_same_machine_also_through_json() {
    let mut live = machine(Rules::default());
    let planned = ask(
        &mut live,
        vec![
            call("", "look", &json!({})),
            call("", "look", &json!({"n": 1})),
        ],
    );
    let stored = serde_json::to_string(&live).expect("a machine is data");
    let mut loaded: Machine = serde_json::from_str(&stored).expect("a machine");
    assert_eq!(loaded.next(), live.next());
    for machine in [&mut live, &mut loaded] {
        give(machine, &planned, ToolOutcome::Done, "x");
    }
    assert_eq!(loaded.messages(), live.messages());
    assert_eq!(loaded.next(), live.next());
}

#[test]
fn no_call_of_a_truncated_answer_is_run_and_it_is_asked_for_once_more() {
    let mut machine = machine(Rules::default());
    let cut = || {
        answer(
            Finish::Length,
            vec![text("so"), call("a", "look", &json!({}))],
        )
    };
    machine.model_response(cut(), &COUNTER);
    let Next::CallModel(again) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    assert_eq!(again.max_output_tokens, 16_384);
    assert_eq!(machine.messages().len(), 1, "what was cut off is not sent");
    machine.model_response(cut(), &COUNTER);
    assert_eq!(
        end(&machine),
        End::Truncated {
            text: "so".to_owned()
        }
    );
    let messages = machine.messages();
    let Message::Tools { results } = &**messages.last().expect("results") else {
        panic!("{messages:?}");
    };
    assert_eq!(results[0].text, "truncated");
}

#[test]
fn each_finish_has_its_one_action() {
    for (finish, expected) in [
        (Finish::Stop, "answered"),
        (Finish::Refusal, "refused"),
        (Finish::Malformed, "call"),
        (Finish::Pause, "call"),
        (Finish::Length, "call"),
        // No call in it: nothing to run.
        (Finish::ToolCalls, "call"),
    ] {
        let mut machine = machine(Rules::default());
        machine.model_response(answer(finish, vec![text("x")]), &COUNTER);
        let action = match machine.next() {
            Next::CallModel(_) => "call",
            Next::RunTools(_) => "run",
            Next::Compact(_) => "compact",
            Next::Done(End::Answered { .. }) => "answered",
            Next::Done(End::Refused { .. }) => "refused",
            Next::Done(
                End::Truncated { .. }
                | End::ToolFailed { .. }
                | End::ModelFailed(_)
                | End::Aborted(_),
            ) => "other",
        };
        assert_eq!(action, expected, "{finish:?}");
    }
}

#[test]
fn what_goes_round_in_circles_is_ended() {
    let rules = Rules::default();
    let looping: [(Finish, Abort); 2] = [
        (Finish::Malformed, Abort::Malformed(3)),
        (Finish::Pause, Abort::Pauses(9)),
    ];
    for (finish, abort) in looping {
        let mut machine = machine(rules.clone());
        for _ in 0..50 {
            if matches!(machine.next(), Next::Done(_)) {
                break;
            }
            machine.model_response(answer(finish, vec![text("x")]), &COUNTER);
        }
        assert_eq!(end(&machine), End::Aborted(abort));
    }
}

#[test]
fn a_tool_that_only_fails_ends_the_run_and_a_success_starts_the_count_again() {
    let mut machine = machine(Rules::default());
    for (turn, outcome) in [
        ToolOutcome::Failed,
        ToolOutcome::Failed,
        ToolOutcome::Done,
        ToolOutcome::Failed,
        ToolOutcome::Failed,
        ToolOutcome::Failed,
    ]
    .into_iter()
    .enumerate()
    {
        let planned = ask(&mut machine, vec![call("", "look", &json!({"turn": turn}))]);
        give(&mut machine, &planned, outcome, "x");
    }
    let tool = "look".to_owned();
    assert_eq!(
        end(&machine),
        End::Aborted(Abort::FailingTool { tool, turns: 3 })
    );
}

#[test]
fn a_repeated_call_is_warned_and_then_ended_whatever_came_out() {
    let mut machine = machine(Rules::default());
    let mut warned = Vec::new();
    for turn in 0..7 {
        // Another order of members is the same call.
        let arguments = if turn % 2 == 0 {
            r#"{"a":1,"b":2}"#
        } else {
            r#"{ "b": 2, "a": 1 }"#
        };
        let block = Block::Call(Call {
            id: String::new(),
            name: "look".to_owned(),
            arguments: arguments.to_owned(),
        });
        let planned = ask(&mut machine, vec![block]);
        warned.extend(planned.iter().map(|planned| planned.repeated));
        give(&mut machine, &planned, ToolOutcome::Done, "x");
    }
    assert_eq!(warned, [None, None, None, Some(4), Some(5), Some(6)]);
    let tool = "look".to_owned();
    assert_eq!(
        end(&machine),
        End::Aborted(Abort::RepeatedCall { tool, times: 7 })
    );
    let told = machine.messages().iter().any(|message| {
        matches!(&**message, Message::Tools { results } if results[0].text.contains("4 times"))
    });
    assert!(told, "the model reads the warning");
    assert!(pairs::are_whole(&machine.messages()));
}

#[test]
fn limits_stop_the_run_before_the_next_call() {
    let limits = |limits: Limits| Rules {
        limits,
        ..Rules::default()
    };
    let used = |input, output| Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        ..Usage::default()
    };
    let mut rules = limits(Limits {
        turns: 1,
        ..Limits::default()
    });
    for (abort, rules) in [
        (Abort::Turns(1), rules.clone()),
        (
            Abort::Tokens(1_100),
            limits(Limits {
                total_tokens: Some(1_000),
                ..Limits::default()
            }),
        ),
        (Abort::Cost(30), {
            rules = limits(Limits {
                cost_micros: Some(20),
                ..Limits::default()
            });
            rules.prices = Some(Prices {
                input_micros: 10_000,
                cached_micros: 0,
                output_micros: 200_000,
                currency: "USD".to_owned(),
            });
            rules.clone()
        }),
    ] {
        let mut machine = machine(rules);
        let mut response = answer(Finish::ToolCalls, vec![call("a", "look", &json!({}))]);
        response.usage = used(1_000, 100);
        machine.model_response(response, &COUNTER);
        let Next::RunTools(planned) = machine.next() else {
            panic!("{:?}", machine.next());
        };
        give(&mut machine, &planned, ToolOutcome::Done, "x");
        assert_eq!(end(&machine), End::Aborted(abort));
    }
    let mut machine = machine(limits(Limits {
        tool_calls: 1,
        ..Limits::default()
    }));
    ask(
        &mut machine,
        vec![
            call("a", "look", &json!({})),
            call("b", "look", &json!({"n": 2})),
        ],
    );
    assert_eq!(end(&machine), End::Aborted(Abort::ToolCalls(2)));
}

#[test]
fn usage_of_more_than_can_be_reaches_the_limit() {
    let mut machine = machine(Rules {
        limits: Limits {
            total_tokens: Some(1_000),
            ..Limits::default()
        },
        ..Rules::default()
    });
    let mut response = answer(Finish::ToolCalls, vec![call("a", "look", &json!({}))]);
    response.usage = Usage {
        input_tokens: Some(u64::MAX),
        output_tokens: Some(u64::MAX),
        ..Usage::default()
    };
    machine.model_response(response, &COUNTER);
    let Next::RunTools(planned) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    give(&mut machine, &planned, ToolOutcome::Done, "x");
    assert_eq!(end(&machine), End::Aborted(Abort::Tokens(u64::MAX)));
}

#[test]
fn ids_that_cannot_be_used_are_made_and_results_find_their_calls() {
    let mut machine = machine(Rules::default());
    let planned = ask(
        &mut machine,
        vec![
            call("x", "look", &json!({"n": 1})),
            call("x", "look", &json!({"n": 2})),
        ],
    );
    let ids: Vec<&str> = planned
        .iter()
        .map(|planned| planned.call.id.as_str())
        .collect();
    assert_eq!(ids, ["x", "call_1_1"]);
    give(&mut machine, &planned, ToolOutcome::Done, "y");
    let planned = ask(&mut machine, vec![call("x", "look", &json!({"n": 3}))]);
    assert_eq!(planned[0].call.id, "call_2_0");
    assert!(
        pairs::are_whole(&machine.messages()),
        "also while the last call is open"
    );
}

#[test]
fn a_result_that_is_missing_or_belongs_to_no_call_does_not_break_the_pairs() {
    let mut machine = machine(Rules::default());
    ask(
        &mut machine,
        vec![
            call("a", "look", &json!({})),
            call("b", "look", &json!({"n": 1})),
        ],
    );
    let result = |id: &str| ToolResult {
        call_id: id.to_owned(),
        text: id.to_owned(),
        outcome: ToolOutcome::Done,
    };
    machine.tool_results(vec![result("b"), result("zz")], &COUNTER);
    let messages = machine.messages();
    assert!(pairs::are_whole(&messages));
    let Message::Tools { results } = &**messages.last().expect("results") else {
        panic!("{messages:?}");
    };
    assert_eq!(results[0].text, pairs::INTERRUPTED);
    assert_eq!(results[1].text, "b");
}

#[test]
fn a_fatal_tool_and_an_abort_end_the_run_with_every_call_answered() {
    let mut machine = machine(Rules::default());
    let planned = ask(&mut machine, vec![call("a", "look", &json!({}))]);
    give(&mut machine, &planned, ToolOutcome::Fatal, "HTTP 401");
    assert!(matches!(end(&machine), End::ToolFailed { .. }));
    assert!(pairs::are_whole(&machine.messages()));

    let mut machine = self::machine(Rules::default());
    ask(&mut machine, vec![call("a", "look", &json!({}))]);
    machine.abort(Abort::Cancelled, &[], &COUNTER);
    assert_eq!(end(&machine), End::Aborted(Abort::Cancelled));
    let messages = machine.messages();
    let Message::Tools { results } = &**messages.last().expect("results") else {
        panic!("{messages:?}");
    };
    assert_eq!(results[0].text, "[aborted by caller]");
}
