//! What the ledger says to each ask, by what is recorded and how the work is classed.

use super::*;
use crate::agent::AgentError;
use crate::journal::Step;
use crate::payload::Payload;

const EFFECTS: [Effect; 4] = [
    Effect::ReadOnly,
    Effect::Idempotent,
    Effect::Verifiable,
    Effect::Once,
];

fn value(number: u64) -> Outcome {
    Ok(Payload::json(&number).unwrap())
}

fn failure(retryable: bool) -> Outcome {
    let error = AgentError::new("Down", "the service is down");
    let error = if retryable { error.retryable() } else { error };
    Err(Box::new(error.into_parts()))
}

fn step(name: &str, key: &str, outcome: Option<Outcome>) -> Entry {
    Entry::Step(Box::new(Step {
        name: name.to_owned(),
        key: key.to_owned(),
        idempotency_key: format!("run/{name}/{key}"),
        outcome,
    }))
}

fn ledger(entries: Vec<Entry>) -> Ledger {
    let numbered = entries.into_iter().zip(1..);
    let recorded = numbered.map(|(entry, seq)| Recorded::new(seq, 1, entry));
    Ledger::of("run", recorded.collect())
}

/// What an ask comes to, in short.
fn said(asked: Result<Asked, StepError>) -> String {
    match asked {
        Ok(Asked::Recorded { id, outcome: Ok(_) }) => format!("{id} recorded"),
        Ok(Asked::Recorded {
            id,
            outcome: Err(_),
        }) => format!("{id} failed"),
        Ok(Asked::Run { id, begin, check }) => {
            let begin = if begin { " begin" } else { "" };
            let check = if check { " check" } else { "" };
            format!("{id}{check}{begin} run")
        }
        Err(StepError::OutcomeUnknown {
            idempotency_key, ..
        }) => format!("unknown {idempotency_key}"),
        Err(StepError::Mismatch { asked, recorded }) => format!("{asked} is not {recorded}"),
        Err(StepError::Misused(why)) => format!("misused: {why}"),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn every_recorded_state_with_every_effect() {
    let begin = step("a", "k", None);
    let done = |outcome| step("a", "k", Some(outcome));
    let runs = "a (k) begin run";
    let rows = [
        ("nothing", None, ["a (k) run", runs, runs, runs]),
        (
            "a begin",
            Some(begin),
            [
                "a (k) run",
                "a (k) run",
                "a (k) check run",
                "unknown run/a/k",
            ],
        ),
        ("a value", Some(done(value(1))), ["a (k) recorded"; 4]),
        ("a failure", Some(done(failure(false))), ["a (k) failed"; 4]),
        (
            "a failure that may pass",
            Some(done(failure(true))),
            ["a (k) run", "a (k) run", "a (k) run", "a (k) failed"],
        ),
    ];
    for (what, recorded, expected) in rows {
        for (effect, expected) in EFFECTS.into_iter().zip(expected) {
            let mut ledger = ledger(recorded.clone().into_iter().collect());
            let asked = ledger.ask("a", Some("k"), effect, false);
            assert_eq!(said(asked), expected, "{what}, {effect:?}");
        }
    }
}

#[test]
fn a_failure_that_others_followed_stands_even_if_it_may_pass() {
    let mut ledger = ledger(vec![
        step("a", "k", Some(failure(true))),
        step("b", "k", Some(value(1))),
    ]);
    let asked = ledger.ask("a", Some("k"), Effect::Idempotent, false);
    assert_eq!(said(asked), "a (k) failed");
}

#[test]
fn steps_with_a_key_are_found_in_any_order() {
    let mut ledger = ledger(vec![
        step("a", "x", Some(value(1))),
        step("b", "x", None),
        step("a", "y", Some(value(2))),
        step("b", "x", Some(value(3))),
    ]);
    for (name, key) in [("b", "x"), ("a", "y"), ("a", "x"), ("a", "x")] {
        let asked = ledger.ask(name, Some(key), Effect::Once, false);
        assert_eq!(said(asked), format!("{name} ({key}) recorded"));
    }
}

#[test]
fn steps_without_a_key_come_in_the_order_recorded_and_go_on_behind_it() {
    let mut ledger = ledger(vec![
        step("a", "1", None),
        step("a", "1", Some(value(1))),
        step("b", "key", Some(value(9))),
        step("b", "1", Some(value(2))),
        step("a", "2", Some(value(3))),
    ]);
    for (name, expected) in [
        ("a", "a (1) recorded"),
        ("b", "b (1) recorded"),
        ("a", "a (2) recorded"),
        ("a", "a (3) begin run"),
    ] {
        let asked = ledger.ask(name, None, Effect::Once, false);
        assert_eq!(said(asked), expected);
    }
}

#[test]
fn another_step_than_the_next_one_recorded_is_a_mismatch_that_names_both() {
    let mut ledger = ledger(vec![
        step("a", "1", Some(value(1))),
        step("b", "1", Some(value(2))),
    ]);
    let asked = ledger.ask("b", None, Effect::Idempotent, false);
    assert_eq!(said(asked), "b (1) is not a (1)");
    // It changes nothing: the one to come is still to come.
    let asked = ledger.ask("a", None, Effect::Idempotent, false);
    assert_eq!(said(asked), "a (1) recorded");
}

#[test]
fn steps_without_a_key_run_one_after_the_other() {
    let mut ledger = ledger(Vec::new());
    let first = ledger.ask("a", None, Effect::Once, false);
    assert_eq!(said(first), "a (1) begin run");
    for (name, nested) in [("b", false), ("a", false)] {
        let asked = said(ledger.ask(name, None, Effect::Once, nested));
        assert!(asked.contains("give this one a key"), "{asked}");
    }
    let keyed = ledger.ask("b", Some("k"), Effect::Once, false);
    assert_eq!(said(keyed), "b (k) begin run");
    let id = |name: &str, key: &str| Id {
        name: name.to_owned(),
        key: key.to_owned(),
    };
    // One with a key holds up nobody, nor does its end let anybody go.
    ledger.done(id("b", "k"), value(1));
    assert!(said(ledger.ask("b", None, Effect::Once, false)).starts_with("misused"));
    ledger.done(id("a", "1"), value(1));
    let nested = said(ledger.ask("b", None, Effect::Once, true));
    assert!(nested.starts_with("misused"), "{nested}");
    assert_eq!(
        said(ledger.ask("b", None, Effect::Once, false)),
        "b (1) begin run"
    );
}

#[test]
fn a_step_is_not_asked_for_twice_at_a_time() {
    let mut ledger = ledger(Vec::new());
    let id = match ledger.ask("a", Some("k"), Effect::Idempotent, false) {
        Ok(Asked::Run { id, .. }) => id,
        other => panic!("{other:?}"),
    };
    let again = said(ledger.ask("a", Some("k"), Effect::Idempotent, false));
    assert!(again.contains("running already"), "{again}");
    ledger.done(id, value(1));
    let asked = ledger.ask("a", Some("k"), Effect::Idempotent, false);
    assert_eq!(said(asked), "a (k) recorded");
}

#[test]
fn a_step_that_was_given_up_is_as_its_record_says() {
    for (recorded, ran, expected) in [
        (false, false, "a (k) begin run"),
        (false, true, "unknown run/a/k"),
        // Only a check can have been asked meanwhile: what was begun before stays begun.
        (true, false, "unknown run/a/k"),
    ] {
        let entries = recorded.then(|| step("a", "k", None));
        let mut ledger = ledger(entries.into_iter().collect());
        let Ok(Asked::Run { id, .. }) = ledger.ask("a", Some("k"), Effect::Verifiable, false)
        else {
            panic!("it is to run");
        };
        ledger.dropped(id, ran);
        let asked = ledger.ask("a", Some("k"), Effect::Once, false);
        assert_eq!(said(asked), expected, "recorded {recorded}, ran {ran}");
    }
}

#[test]
fn keys_of_digits_and_names_of_nothing_are_refused() {
    let mut ledger = ledger(Vec::new());
    for (name, key) in [
        ("a", Some("1")),
        ("a", Some("")),
        ("", Some("k")),
        ("", None),
    ] {
        let asked = said(ledger.ask(name, key, Effect::Once, false));
        assert!(asked.starts_with("misused"), "{name:?} {key:?}: {asked}");
    }
}

#[test]
fn usage_of_earlier_attempts_counts_on() {
    let usage = |input_tokens| Usage {
        input_tokens,
        ..Usage::default()
    };
    let mut ledger = ledger(vec![
        Entry::Usage(Box::new(usage(1))),
        step("a", "1", Some(value(1))),
        Entry::Usage(Box::new(usage(2))),
    ]);
    ledger.use_up(usage(3));
    let tokens: Vec<u64> = ledger
        .used()
        .iter()
        .map(|usage| usage.input_tokens)
        .collect();
    assert_eq!(tokens, [1, 2, 3]);
}

#[cfg(feature = "agent-loop")]
#[test]
fn usage_is_settled_by_the_next_result_that_stands() {
    let usage = |input_tokens| {
        Entry::Usage(Box::new(Usage {
            input_tokens,
            ..Usage::default()
        }))
    };
    let model = |key, outcome| step("model", key, Some(outcome));
    let unsettled = |ledger: &Ledger| -> Vec<u64> {
        let unsettled = ledger.unsettled().into_iter();
        unsettled.map(|usage| usage.input_tokens).collect()
    };
    let before = [usage(1), model("a", value(1)), step("tool", "t", None)];
    let behind = [usage(2), step("tool", "t", Some(value(2))), usage(3)];
    let answered = [before, behind].concat();
    for (more, expected) in [
        (vec![], vec![3]),
        (vec![usage(4)], vec![3, 4]),
        (vec![model("b", value(3))], vec![]),
        // It may be tried again: then it is the next try that settles it, or the one behind that.
        (vec![model("b", failure(true))], vec![3]),
        (vec![model("b", failure(true)), usage(4)], vec![3, 4]),
        (
            vec![
                model("b", failure(true)),
                usage(4),
                model("b", failure(true)),
            ],
            vec![3, 4],
        ),
        (
            vec![model("b", failure(true)), usage(4), model("b", value(3))],
            vec![],
        ),
        (vec![model("b", failure(false)), usage(4)], vec![4]),
    ] {
        let entries = [answered.clone(), more].concat();
        let said = format!("{entries:?}");
        assert_eq!(unsettled(&ledger(entries)), expected, "{said}");
    }
    let mut ledger = ledger(answered);
    let Ok(Asked::Run { id, .. }) = ledger.ask("model", Some("b"), Effect::ReadOnly, false) else {
        panic!("it is to run");
    };
    assert_eq!(unsettled(&ledger), [3]);
    ledger.done(id, value(4));
    assert!(unsettled(&ledger).is_empty());
}
