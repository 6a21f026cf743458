//! What is left out of a conversation, and when.

use serde_json::json;

use super::*;
use crate::agent_loop::budget::Budget;

/// A window of 10,000 tokens, of which an answer takes 1,000.
fn small() -> Rules {
    let budget = Budget {
        context_window: 10_000,
        max_output_tokens: 1_000,
        max_output_tokens_retry: 1_000,
        ..Budget::default()
    };
    Rules {
        budget,
        ..Rules::default()
    }
}

#[test]
fn the_oldest_results_go_first_and_well_under_the_trigger() {
    let mut machine = machine(small());
    let mut compactions = 0;
    for turn in 0..30 {
        if let Next::Compact(compaction) = machine.next() {
            compactions += 1;
            assert!(compaction.tokens_before > 7_200, "{compaction:?}");
            assert!(compaction.tokens_after <= 4_500, "{compaction:?}");
            assert!(compaction.removed.is_empty() && compaction.cleared.is_sorted());
            machine.compacted(&compaction, &COUNTER);
            let estimated = machine.input_tokens().abs_diff(compaction.tokens_after);
            assert!(estimated < 500, "{estimated}");
        }
        let planned = ask(&mut machine, vec![call("", "look", &json!({"turn": turn}))]);
        give(
            &mut machine,
            &planned,
            ToolOutcome::Done,
            &"y".repeat(3_000),
        );
        assert!(pairs::are_whole(&machine.messages()));
    }
    assert!((5..=12).contains(&compactions), "{compactions}");
    let Message::Tools { results } = &*machine.messages()[2].clone() else {
        panic!("a result");
    };
    assert_eq!(
        results[0].text,
        "[result of 3000 bytes left out to save space]"
    );
}

#[test]
fn whole_turns_go_where_clearing_results_is_not_enough() {
    let mut machine = machine(small());
    for turn in 0..7 {
        let arguments = json!({"turn": turn, "text": "z".repeat(3_000)});
        let planned = ask(&mut machine, vec![call("", "write", &arguments)]);
        give(&mut machine, &planned, ToolOutcome::Done, "written");
    }
    let Next::Compact(compaction) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    assert!(compaction.removed.starts_with(&[1, 2]), "{compaction:?}");
    assert!(
        !compaction.removed.contains(&7) && !compaction.removed.contains(&6),
        "{compaction:?}"
    );
    machine.compacted(&compaction, &COUNTER);
    assert!(matches!(machine.next(), Next::CallModel(_)));
    let messages = machine.messages();
    assert!(pairs::are_whole(&messages));
    assert!(matches!(&*messages[1], Message::User { text } if text.contains("left out")));
}

#[test]
fn a_conversation_that_cannot_be_made_shorter_ends_the_run_before_the_call() {
    let opening = vec![Message::user("x".repeat(60_000))];
    let machine = Machine::new(small(), opening, 100, &COUNTER);
    assert!(matches!(
        end(&machine),
        End::Aborted(Abort::ContextFull { .. })
    ));
}

#[test]
fn an_input_the_provider_finds_too_long_is_made_shorter_once() {
    let mut machine = machine(Rules::default());
    // More than one shortening could take: once is all it gets.
    for turn in 0..12 {
        let planned = ask(&mut machine, vec![call("", "look", &json!({"turn": turn}))]);
        give(
            &mut machine,
            &planned,
            ToolOutcome::Done,
            &"y".repeat(3_000),
        );
    }
    machine.context_exceeded();
    let Next::Compact(compaction) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    machine.compacted(&compaction, &COUNTER);
    assert!(matches!(machine.next(), Next::CallModel(_)));
    machine.context_exceeded();
    assert!(matches!(
        end(&machine),
        End::Aborted(Abort::ContextFull { .. })
    ));
}

#[test]
fn the_estimate_follows_what_the_provider_reports() {
    let mut machine = machine(Rules::default());
    let before = machine.input_tokens();
    let mut response = answer(Finish::ToolCalls, vec![call("a", "look", &json!({}))]);
    response.usage.input_tokens = Some(before * 2);
    machine.model_response(response, &COUNTER);
    let Next::RunTools(planned) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    give(&mut machine, &planned, ToolOutcome::Done, "x");
    assert!(machine.input_tokens() > before * 2);
}

#[test]
fn the_newest_turns_are_never_made_shorter() {
    let mut machine = machine(small());
    for turn in 0..2 {
        let planned = ask(&mut machine, vec![call("", "look", &json!({"turn": turn}))]);
        let text = "y".repeat(11_500);
        give(&mut machine, &planned, ToolOutcome::Done, &text);
    }
    assert!(machine.input_tokens() > small().budget.trigger(1_000));
    assert!(matches!(machine.next(), Next::CallModel(_)));
}

/// A machine near its window whose ids are so long that naming a cleared result takes far more than
/// it is taken for, so that one shortening does not do what it was planned to.
fn misjudged() -> Machine {
    let mut machine = machine(small());
    for turn in 0..3 {
        let calls = (0..10).map(|n| {
            let id = format!("{turn}-{n}-{}", "x".repeat(240));
            call(&id, "look", &json!({"n": 10 * turn + n}))
        });
        let planned = ask(&mut machine, calls.collect());
        give(&mut machine, &planned, ToolOutcome::Done, &"y".repeat(300));
    }
    machine
}

#[test]
fn a_conversation_is_made_shorter_until_it_fits_or_nothing_is_left_to_leave_out() {
    let mut machine = misjudged();
    let mut plans = Vec::new();
    while let Next::Compact(compaction) = machine.next() {
        assert_eq!(machine.compactions() as usize, plans.len());
        assert!(!plans.contains(&compaction), "{plans:?}");
        machine.compacted(&compaction, &COUNTER);
        plans.push(compaction);
    }
    assert!(plans.len() > 1, "the first was not enough: {plans:?}");
    assert!(machine.input_tokens() <= small().budget.trigger(1_000));
    let planned = ask(&mut machine, vec![call("z", "look", &json!({}))]);
    give(&mut machine, &planned, ToolOutcome::Done, "x");
    assert_eq!(machine.compactions(), 0, "of the next call");
}

#[test]
fn a_recorded_compaction_that_leaves_out_nothing_new_is_followed_by_another() {
    let mut machine = misjudged();
    let Next::Compact(plan) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    // What another version recorded.
    machine.compacted(&Compaction::default(), &COUNTER);
    let Next::Compact(again) = machine.next() else {
        panic!("{:?}", machine.next());
    };
    assert_eq!((again, machine.compactions()), (plan, 1));
}

#[test]
fn thinking_and_answer_are_kept_free_and_a_window_may_have_any_size() {
    let mut rules = small();
    rules.budget.thinking = crate::agent_loop::Thinking::Budget(2_000);
    for (window, input) in [(10_000, 7_000), (u64::MAX, u64::MAX - 3_000)] {
        rules.budget.context_window = window;
        let Next::CallModel(call) = machine(rules.clone()).next() else {
            panic!("{window}");
        };
        assert_eq!(call.input_tokens_max, input);
    }
}

#[test]
fn limits_are_reached_also_where_a_provider_does_not_say_what_it_used() {
    let tokens = |usage: Usage, limits: Limits| {
        let mut rules = Rules { limits, ..small() };
        rules.prices = Some(Prices {
            input_micros: 1_000_000,
            cached_micros: 0,
            output_micros: 0,
            currency: "EUR".to_owned(),
        });
        let mut machine = machine(rules);
        for turn in 0.. {
            let Next::CallModel(_) = machine.next() else {
                break;
            };
            assert!(turn < 40, "{:?}", machine.used());
            let call = call("", "look", &json!({"turn": turn}));
            let mut response = answer(Finish::ToolCalls, vec![call]);
            response.usage = usage.clone();
            machine.model_response(response, &COUNTER);
            let Next::RunTools(planned) = machine.next() else {
                panic!("{:?}", machine.next());
            };
            give(&mut machine, &planned, ToolOutcome::Done, "x");
        }
        (end(&machine), machine.used())
    };
    let of_tokens = Limits {
        total_tokens: Some(500),
        ..Limits::default()
    };
    let (end, used) = tokens(Usage::default(), of_tokens.clone());
    assert!(
        matches!(end, End::Aborted(Abort::Tokens(500..800))),
        "{end:?}"
    );
    assert!(used.input_tokens > used.output_tokens && used.output_tokens > 0);
    let of_cost = Limits {
        cost_micros: Some(500),
        ..Limits::default()
    };
    let (end, used) = tokens(Usage::default(), of_cost);
    assert!(
        matches!(end, End::Aborted(Abort::Cost(500..800))),
        "{end:?}"
    );
    assert_eq!(used.cost_micros, used.input_tokens);
    // Nothing is read for no tokens: a provider that says so says nothing.
    let says = |input, output| Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        ..Usage::default()
    };
    let (end, _) = tokens(says(0, 0), of_tokens.clone());
    assert!(
        matches!(end, End::Aborted(Abort::Tokens(500..800))),
        "{end:?}"
    );
    // What it does say counts.
    let (end, used) = tokens(says(90, 10), of_tokens);
    assert!(matches!(end, End::Aborted(Abort::Tokens(500))), "{end:?}");
    assert_eq!((used.input_tokens, used.output_tokens), (450, 50));
}
