//! What failed tries of a model call used: it counts, is in the journal, and stops the run.

use super::crashing::attempt;
use super::*;
use crate::agent_loop::{Prices, Usage, Used};
use crate::journal::{Entry, Memory};

/// Breaks off when so many tokens were read.
fn cut(input_tokens: u64) -> ModelError {
    let usage = Usage {
        input_tokens: Some(input_tokens),
        output_tokens: Some(1),
        ..Usage::default()
    };
    ModelError::new(Failure::Cut, "cut").with_usage(usage)
}

fn used(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage {
        input_tokens: Some(input_tokens),
        output_tokens: Some(output_tokens),
        ..Usage::default()
    }
}

/// What the journal holds of what model calls used.
fn journaled(journal: &Memory) -> Used {
    let entries = journal.entries().into_iter();
    let usages = entries.filter_map(|recorded| match recorded.entry {
        Entry::Usage(usage) => Some(Used {
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            cost_micros: usage.cost_micros,
        }),
        _ => None,
    });
    usages.fold(Used::default(), Used::plus)
}

fn limited(model: ScriptedModel, total_tokens: u64) -> AgentLoop {
    let limits = Limits {
        total_tokens: Some(total_tokens),
        ..Limits::default()
    };
    let agent = World::default().builder(model).limits(limits);
    agent.build().expect("an agent")
}

#[tokio::test(start_paused = true)]
async fn what_failed_tries_used_counts_and_is_in_the_journal() {
    let journal = Memory::new();
    let line = Line::text("hello").usage(used(10, 4));
    let unknown = ModelError::new(Failure::Transient, "busy");
    let model = ScriptedModel::new([line]).failing([cut(100), unknown, cut(200)]);
    let prices = Prices {
        input_micros: 1_000_000,
        cached_micros: 0,
        output_micros: 2_000_000,
        currency: "EUR".to_owned(),
    };
    let agent = World::default().builder(model).prices(prices);
    let agent = agent.build().expect("an agent");
    let ended = attempt(&agent, &journal, 1, usize::MAX)
        .await
        .expect("no crash");
    let expected = Used {
        input_tokens: 310,
        output_tokens: 6,
        cost_micros: 322,
    };
    assert_eq!((ended.used, ended.turns), (expected, 1));
    assert_eq!(journaled(&journal), expected);
    let again = attempt(&agent, &journal, 2, usize::MAX).await;
    assert_eq!(again, Some(ended), "read back");
}

#[tokio::test(start_paused = true)]
async fn tries_that_used_what_the_run_may_are_the_last_until_the_limit_is_raised() {
    let journal = Memory::new();
    let failing = || ScriptedModel::new([]).failing((0..6).map(|_| cut(100)));
    let agent = limited(failing(), 250);
    let ended = attempt(&agent, &journal, 1, usize::MAX)
        .await
        .expect("no crash");
    assert_eq!(ended.end, End::Aborted(Abort::Tokens(303)), "three tries");
    assert_eq!(journaled(&journal), ended.used);
    let standing = agent.standing(&"go".into(), &journal.entries());
    assert!(standing.is_ended && standing.turns == ended.turns);
    let again = attempt(&limited(failing(), 250), &journal, 2, usize::MAX).await;
    assert_eq!(again, Some(ended), "no further try");
    let answers = ScriptedModel::by(|_| Some(Line::text("hello").usage(used(10, 4))));
    let ended = attempt(&limited(answers, 1_000), &journal, 3, usize::MAX).await;
    let ended = ended.expect("no crash");
    assert!(matches!(ended.end, End::Answered { .. }), "{ended:?}");
    assert_eq!((ended.turns, ended.used.tokens()), (2, 303 + 14));
}

#[tokio::test(start_paused = true)]
async fn what_attempts_before_used_counts_on() {
    let journal = Memory::new();
    let build = |failures: usize| {
        let model = ScriptedModel::new([Line::text("hello").usage(used(10, 4))]);
        let model = model.failing((0..failures).map(|_| cut(100)));
        let agent = World::default().builder(model).retry(ModelRetry {
            retries: 1,
            ..ModelRetry::default()
        });
        agent.build().expect("an agent")
    };
    for (number, tokens) in [(1, 202), (2, 404)] {
        let ended = attempt(&build(2), &journal, number, usize::MAX).await;
        let ended = ended.expect("no crash");
        assert!(matches!(
            &ended.end,
            End::ModelFailed(ModelFailed { may_pass: true, .. })
        ));
        assert_eq!(ended.used.tokens(), tokens, "attempt {number}");
    }
    let third = attempt(&build(0), &journal, 3, usize::MAX).await;
    let third = third.expect("no crash");
    assert!(matches!(third.end, End::Answered { .. }), "{third:?}");
    assert_eq!(third.used.tokens(), 404 + 14);
    assert_eq!(third.used, journaled(&journal));
    let fourth = attempt(&build(0), &journal, 4, usize::MAX).await;
    assert_eq!(fourth, Some(third));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_makes_no_call_where_those_before_left_nothing_for_one() {
    let journal = Memory::new();
    let waits = Duration::from_secs(3_600);
    let failing = cut(300).with_retry_after(Some(waits));
    let agent = limited(ScriptedModel::new([]).failing([failing]), 250);
    let first = attempt(&agent, &journal, 1, usize::MAX).await;
    let end = first.expect("no crash").end;
    assert!(
        matches!(&end, End::ModelFailed(failed) if failed.may_pass),
        "{end:?}"
    );
    let answers = limited(ScriptedModel::new([Line::text("hello")]), 250);
    let second = attempt(&answers, &journal, 2, usize::MAX).await;
    let second = second.expect("no crash");
    assert_eq!(second.end, End::Aborted(Abort::Tokens(301)));
    assert_eq!(second.used, journaled(&journal));
}

#[tokio::test(start_paused = true)]
async fn whatever_is_in_the_journal_is_counted_once_wherever_a_worker_dies() {
    let agent = || {
        let model = ScriptedModel::new([
            Line::call_as("c1", "write", r#"{"n": 1}"#).usage(used(10, 4)),
            Line::call_as("c2", "fetch", r#"{"n": 2}"#).usage(used(20, 5)),
            Line::text("done").usage(used(30, 6)),
        ]);
        World::default().agent(model.failing([cut(100), cut(200)]))
    };
    let whole = Memory::new();
    attempt(&agent(), &whole, 1, usize::MAX)
        .await
        .expect("no crash");
    let mut more = 0;
    for first in 1..=whole.entries().len() {
        for second in [1, 2, 3, 4, 5, usize::MAX] {
            let journal = Memory::new();
            assert!(attempt(&agent(), &journal, 1, first).await.is_none());
            attempt(&agent(), &journal, 2, second).await;
            let ended = attempt(&agent(), &journal, 3, usize::MAX).await;
            let ended = ended.expect("no crash");
            assert!(matches!(ended.end, End::Answered { .. }), "{ended:?}");
            let at = format!("crashes at {first} and {second}");
            assert_eq!(ended.used, journaled(&journal), "{at}");
            more += u32::from(ended.used.tokens() > journaled(&whole).tokens());
        }
    }
    assert!(more > 10, "answers were lost: {more}");
}
