//! What a hook said, read back by a later attempt.

use std::collections::BTreeSet;

use super::super::crashing::{attempt, check, script};
use super::*;
use crate::journal::{Entry, Journal as _};

fn denies_the_first_write(call: &PendingCall) -> Result<Verdict, AgentError> {
    Ok(match &*call.call_id {
        "a3" => Verdict::deny("not this one"),
        _ => Verdict::Allow,
    })
}

fn allows(_: &PendingCall) -> Result<Verdict, AgentError> {
    Ok(Verdict::Allow)
}

/// The keys of the tool steps of which something is recorded.
fn begun(journal: &Memory) -> BTreeSet<String> {
    let entries = journal.entries().into_iter();
    let steps = entries.filter_map(|recorded| match recorded.entry {
        Entry::Step(step) if step.name().starts_with("tool/") => Some(step.key().to_owned()),
        _ => None,
    });
    steps.collect()
}

#[tokio::test]
async fn what_a_hook_said_is_kept_wherever_a_worker_dies() {
    let (world, whole, asked) = (World::default(), Memory::new(), Asked::default());
    let agent = hooked(&world, &asked, script(), denies_the_first_write);
    let ended = attempt(&agent, &whole, 1, usize::MAX)
        .await
        .expect("no crash");
    check(&world, &ended, "without a crash");
    let every: BTreeSet<String> = asked.calls().into_iter().collect();
    assert_eq!((every.len(), asked.all().len()), (6, 6), "once for each");
    let mut kept = [0; 2];
    for crash_at in 1..=whole.entries().len() {
        let at = format!("crash at {crash_at}");
        let (world, journal, asked) = (World::default(), Memory::new(), Asked::default());
        let agent = hooked(&world, &asked, script(), denies_the_first_write);
        assert!(attempt(&agent, &journal, 1, crash_at).await.is_none());
        let decided = begun(&journal);
        let standing = agent.standing(&"go".into(), &journal.entries());

        // The next worker's hook is of another mind.
        let asked = Asked::default();
        let agent = hooked(&world, &asked, script(), allows);
        let second = attempt(&agent, &journal, 2, usize::MAX).await;
        let second = second.expect("no crash");
        check(&world, &second, &at);
        let again: BTreeSet<String> = asked.calls().into_iter().collect();
        let open: BTreeSet<String> = every
            .iter()
            .filter(|id| !decided.contains(&*crate::agent_loop::record::call_key(id)))
            .cloned()
            .collect();
        assert_eq!(again, open, "{at}: asked about what had not begun");
        let denied = decided.contains("a3");
        let wrote = world.by_key().keys().any(|key| key.ends_with("/write/a3"));
        assert_eq!(wrote, !denied, "{at}: a denied call stays denied");
        let told = results(&second)[2].text.clone();
        assert_eq!(told.contains("not this one"), denied, "{at}: {told}");
        kept[usize::from(denied)] += 1;
        for before in standing.tools {
            let never = before.state == CallState::NeverStarted;
            let key = crate::agent_loop::record::call_key(&before.call_id);
            let recorded = decided.contains(&*key) && before.call_id != "a3";
            assert_eq!(never, !recorded, "{at}: {before:?}");
        }

        let asked = Asked::default();
        let agent = hooked(&world, &asked, script(), denies_the_first_write);
        let third = attempt(&agent, &journal, 3, usize::MAX).await;
        assert_eq!(third.expect("no crash"), second, "{at}");
        assert!(asked.all().is_empty(), "{at}: nothing is asked of the past");
    }
    assert!(kept[0] > 3 && kept[1] > 10, "both before and behind it");
}

#[tokio::test]
async fn a_hook_that_ends_the_run_is_its_typed_error_in_every_attempt() {
    let (world, journal, asked) = (World::default(), Memory::new(), Asked::default());
    let ends = |call: &PendingCall| {
        Ok(match &*call.tool {
            "order" => Verdict::end("Forbidden", "no orders on Sundays"),
            _ => Verdict::Allow,
        })
    };
    let agent = hooked(&world, &asked, script(), ends);
    let first = attempt(&agent, &journal, 1, usize::MAX)
        .await
        .expect("no crash");
    let abort = Abort::Hook {
        tool: "order".to_owned(),
        error_type: "Forbidden".to_owned(),
        message: "no orders on Sundays".to_owned(),
    };
    assert_eq!(first.end, End::Aborted(abort));
    let last = first.tools.last().expect("a call");
    assert_eq!(
        (&*last.call_id, last.state),
        ("a4", CallState::NeverStarted)
    );
    assert_eq!((world.effects("write"), world.effects("order")), (1, 0));
    assert!(crate::agent_loop::pairs::are_whole(&first.messages));
    let standing = agent.standing(&"go".into(), &journal.entries());
    assert!(standing.is_ended);
    assert_eq!(
        (&standing.tools, &standing.messages),
        (&first.tools, &first.messages)
    );

    let asked = Asked::default();
    let agent = hooked(&world, &asked, script(), allows);
    let again = attempt(&agent, &journal, 2, usize::MAX)
        .await
        .expect("no crash");
    assert_eq!(again, first);
    assert!(asked.all().is_empty() && world.effects("order") == 0);
    let error = again.into_answer().expect_err("no answer");
    assert_eq!(
        (error.error_type(), error.message(), error.is_retryable()),
        ("Forbidden", "no orders on Sundays", false)
    );
}

#[tokio::test]
async fn a_hook_that_fails_leaves_nothing_and_the_next_attempt_asks_again() {
    let fails: [fn() -> std::io::Error; 2] = [
        || std::io::Error::other("nobody at the desk"),
        || panic!("nobody at the desk"),
    ];
    for fail in fails {
        let (world, journal, asked) = (World::default(), Memory::new(), Asked::default());
        let agent = hooked(&world, &asked, script(), move |call| {
            if call.call_id == "a3" {
                return Err(fail().into());
            }
            Ok(Verdict::Allow)
        });
        let (ctx, _) = testing::context().journal(journal.clone()).build();
        let error = agent.run(&ctx, &"go".into()).await.expect_err("it fails");
        assert!(error.is_retryable(), "{error:?}");
        assert!(!begun(&journal).contains("a3"));

        let asked = Asked::default();
        let agent = hooked(&world, &asked, script(), allows);
        let second = attempt(&agent, &journal, 2, usize::MAX).await;
        check(&world, &second.expect("no crash"), "behind the failure");
        assert_eq!(asked.calls()[0], "a3");
        assert_eq!(world.effects("write"), 2);
    }
}

#[tokio::test]
async fn a_call_that_has_begun_comes_to_its_end_when_a_hook_stops_another() {
    let done = Arc::new(AtomicU32::new(0));
    let makes = || {
        let done = Arc::clone(&done);
        tool("slow", move |_, n| {
            let done = Arc::clone(&done);
            async move {
                for _ in 0..20 {
                    pass().await;
                }
                done.fetch_add(1, Ordering::SeqCst);
                Ok(n.to_string())
            }
        })
    };
    let line = (0..4).fold(Line::text(""), |line, n| {
        line.and(Line::call("slow", json!({"n": n})))
    });
    let verdicts: [fn() -> Result<Verdict, AgentError>; 2] = [
        || Ok(Verdict::end("Forbidden", "enough")),
        || Err(AgentError::new("Desk", "closed")),
    ];
    for stops in verdicts {
        done.store(0, Ordering::SeqCst);
        let journal = Memory::new();
        let model = ScriptedModel::new([line.clone(), Line::text("done")]);
        let agent = AgentLoop::builder(model)
            .tool(makes().parallel_safe())
            .parallel_tools(3)
            .before_tool(move |call: PendingCall| async move {
                match call.arguments["n"].as_u64() {
                    Some(0) => Ok(Verdict::Allow),
                    Some(1) => {
                        // The first has begun by then.
                        for _ in 0..5 {
                            pass().await;
                        }
                        stops()
                    }
                    _ => std::future::pending().await,
                }
            });
        let agent = agent.build().expect("an agent");
        let (ctx, _) = testing::context().journal(journal.clone()).build();
        match agent.run(&ctx, &"go".into()).await {
            Ok(ended) => {
                use CallState::{Finished, NeverStarted};
                assert_eq!(
                    states(&ended),
                    [Finished, NeverStarted, NeverStarted, NeverStarted]
                );
            }
            Err(error) => assert_eq!((error.error_type(), error.is_retryable()), ("Desk", true)),
        }
        assert_eq!(done.load(Ordering::SeqCst), 1);
        let replay = journal.replay();
        let finished = replay.iter().filter(|recorded| {
            matches!(&recorded.entry, Entry::Step(step)
                if step.name() == "tool/slow" && step.value().is_some())
        });
        assert_eq!(finished.count(), 1);
    }
}

#[tokio::test]
async fn nothing_begins_beside_a_call_before_which_the_run_was_ended() {
    let (world, journal) = (World::default(), Memory::new());
    let line = (1..=5).fold(Line::text(""), |line, n| {
        line.and(Line::call_as(
            format!("a{n}"),
            "look",
            format!("{{\"n\": {n}}}"),
        ))
    });
    let line = line.and(Line::call_as("a6", "fly", "{}"));
    let builder = || {
        let model = ScriptedModel::new([line.clone(), Line::text("All done.")]);
        world.builder(model).parallel_tools(3)
    };
    let ends = builder().before_tool(|call| async move {
        match &*call.call_id {
            "a1" | "a2" => Ok(Verdict::Allow),
            "a3" => std::future::pending().await,
            "a4" => {
                // The two before have their results, the third still waits.
                for _ in 0..20 {
                    pass().await;
                }
                Ok(Verdict::end("Forbidden", "enough"))
            }
            _ => std::future::pending().await,
        }
    });
    let ends = ends.build().expect("an agent");
    let first = attempt(&ends, &journal, 1, usize::MAX).await;
    let first = first.expect("no crash");
    use CallState::{Finished, NeverStarted};
    let after = [NeverStarted; 4];
    assert_eq!(states(&first)[..2], [Finished; 2]);
    assert_eq!(states(&first)[2..], after);
    let effects = world.by_key();
    let asked = Asked::default();
    let asks = asked.clone();
    let allowing = builder().before_tool(move |call| {
        asks.note(&call);
        std::future::ready(Ok(Verdict::Allow))
    });
    for agent in [allowing, builder()] {
        let agent = agent.build().expect("an agent");
        let again = attempt(&agent, &journal, 2, usize::MAX).await;
        let again = again.expect("no crash");
        assert_eq!((&again.end, &again.tools), (&first.end, &first.tools));
    }
    assert_eq!((world.by_key(), asked.all().len()), (effects, 0));
}
