//! What slots can take: request schemas and sizes.

use super::{
    Action, Code, Event, Failure, Offer, RunId, SECOND, SchemaId, World, ask, deliveries, minimal,
    offer,
};

fn with_schema(schema: u64, worker: u128) -> Offer {
    Offer {
        request_schema: Some(SchemaId(schema)),
        ..minimal("echo", worker)
    }
}

/// What Core wants judged.
fn judges(actions: &[Action]) -> Vec<(RunId, u64)> {
    let judge = |action: &Action| {
        if let Action::Judge { run, schema, .. } = action {
            Some((*run, schema.0))
        } else {
            None
        }
    };
    actions.iter().filter_map(judge).collect()
}

fn judged(world: &mut World, run: RunId, schema: u64, takes: bool) -> Vec<Action> {
    let why = format!("schema {schema} does not take it");
    world.apply(Event::Judged {
        run,
        schema: SchemaId(schema),
        refusal: (!takes).then(|| Failure::new(Code::InvalidRequest, why)),
    })
}

#[test]
fn a_request_is_judged_and_then_delivered() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    let (run, actions) = world.ask_and_see(ask("echo"));
    assert_eq!(judges(&actions), [(run, 1)]);
    assert_eq!(actions.len(), 1, "nothing is sent before the judgement");
    let actions = judged(&mut world, run, 1, true);
    assert_eq!(deliveries(&actions).len(), 1);
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_request_that_no_version_takes_is_invalid() {
    let mut world = World::new();
    world.attach(with_schema(1, 1));
    world.attach(with_schema(2, 2));
    let (run, actions) = world.ask_and_see(ask("echo"));
    assert_eq!(judges(&actions), [(run, 1), (run, 2)]);
    let actions = judged(&mut world, run, 1, false);
    assert!(actions.is_empty(), "the other one is not asked twice");
    judged(&mut world, run, 2, false);
    world.assert_failed(run, Code::InvalidRequest, &["does not take it"]);
}

#[test]
fn a_request_that_one_of_two_versions_takes_goes_only_there() {
    for takes_last in [false, true] {
        let mut world = World::new();
        let old = world.attach(with_schema(1, 1));
        let new = world.attach(with_schema(2, 2));
        let run = world.ask("echo");
        judged(&mut world, run, 1, takes_last);
        judged(&mut world, run, 2, !takes_last);
        let takes = if takes_last { old } else { new };
        assert_eq!(world.run_in(takes), Some(run));
    }
}

#[test]
fn a_request_waits_for_the_busy_slot_of_the_version_that_takes_it() {
    let mut world = World::new();
    let takes = world.attach(with_schema(1, 1));
    let first = world.ask("echo");
    judged(&mut world, first, 1, true);
    let refuses = world.attach(with_schema(2, 2));
    let run = world.ask("echo");
    judged(&mut world, run, 1, true);
    judged(&mut world, run, 2, false);
    assert!(!world.is_answered(run));
    assert_eq!(world.held(refuses), None);
    world.reply(takes);
    assert_eq!(world.run_in(takes), Some(run));
}

#[test]
fn a_run_that_waits_for_a_slot_it_may_use_says_so_at_its_deadline() {
    let mut world = World::new();
    world.attach(with_schema(1, 1));
    let (first, _) = world.ask_and_see(ask("echo").timeout(600 * SECOND));
    judged(&mut world, first, 1, true);
    world.attach(with_schema(2, 2));
    let run = world.ask("echo");
    judged(&mut world, run, 1, true);
    judged(&mut world, run, 2, false);
    world.pass(super::TIMEOUT);
    world.assert_failed(run, Code::DeadlineExceeded, &["no free slot takes this"]);
}

#[test]
fn a_new_version_is_asked_about_the_runs_that_wait() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    world.lose(slot);
    let (run, actions) = world.ask_and_see(ask("echo"));
    assert!(actions.is_empty(), "there is nothing to be judged by");
    let (new, actions) = world.attach_and_see(with_schema(2, 2));
    assert_eq!(judges(&actions), [(run, 2)]);
    judged(&mut world, run, 2, true);
    assert_eq!(world.run_in(new), Some(run));
}

#[test]
fn a_new_version_that_refuses_too_ends_the_runs_that_wait() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    world.lose(slot);
    let run = world.ask("echo");
    world.attach(with_schema(2, 2));
    judged(&mut world, run, 2, false);
    world.assert_failed(run, Code::InvalidRequest, &["schema 2"]);
}

#[test]
fn a_second_slot_of_a_version_asks_nothing_again() {
    let mut world = World::new();
    world.attach(with_schema(1, 1));
    let (run, _) = world.ask_and_see(ask("echo"));
    let (_, actions) = world.attach_and_see(with_schema(1, 2));
    assert!(judges(&actions).is_empty());
    judged(&mut world, run, 1, true);
    assert!(world.core.runs[&run].run.attempt().0 == 1);
}

#[test]
fn a_judgement_that_comes_late_or_twice_changes_nothing() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    let run = world.ask("echo");
    judged(&mut world, run, 1, true);
    assert!(judged(&mut world, run, 1, false).is_empty());
    assert!(judged(&mut world, run, 9, false).is_empty());
    world.reply(slot);
    assert!(judged(&mut world, run, 1, false).is_empty());
    assert!(world.answer(run).outcome.is_ok());
}

#[test]
fn a_run_cancelled_while_it_is_judged_stays_cancelled() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    let run = world.ask("echo");
    world.cancel(run);
    assert!(judged(&mut world, run, 1, true).is_empty());
    assert_eq!(world.held(slot), None);
    world.assert_failed(run, Code::Cancelled, &[]);
}

#[test]
fn a_deadline_while_it_is_judged_is_kept() {
    let mut world = World::new();
    world.attach(with_schema(1, 1));
    let run = world.ask("echo");
    world.pass(super::TIMEOUT);
    world.assert_failed(run, Code::DeadlineExceeded, &["60.000 s queued"]);
}

#[test]
fn when_the_version_that_refused_is_gone_the_judgement_is_of_those_attached() {
    let mut world = World::new();
    let refuses = world.attach(with_schema(1, 1));
    let small = Offer {
        max_receive_bytes: 10,
        ..minimal("echo", 2)
    };
    world.attach(with_schema(2, 3));
    let run = world.ask("echo");
    judged(&mut world, run, 1, false);
    world.lose(refuses);
    world.attach(small);
    judged(&mut world, run, 2, false);
    world.assert_failed(run, Code::InvalidRequest, &["schema 2"]);
}

#[test]
fn what_versions_that_come_and_go_said_does_not_pile_up() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    world.lose(slot);
    let run = world.ask("echo");
    let stays = world.attach(with_schema(2, 2));
    let (blocks, _) = world.ask_and_see(ask("echo").timeout(600 * SECOND));
    judged(&mut world, blocks, 2, true);
    assert_eq!(world.run_in(stays), Some(blocks));
    judged(&mut world, run, 2, true);
    for schema in 3..50 {
        let (slot, actions) = world.attach_and_see(with_schema(schema, 1));
        assert_eq!(judges(&actions), [(run, schema)], "only the new one");
        judged(&mut world, run, schema, false);
        world.lose(slot);
        let kept = world.core.runs[&run].judgements.len();
        assert!(kept <= world.core.limits.agent_classes, "{kept}");
    }
    world.reply(stays);
    assert_eq!(world.run_in(stays), Some(run));
}

#[test]
fn other_content_types_pass_as_bytes() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    let mut other = ask("echo");
    other.request.payload.content_type = "text/plain".to_owned();
    let (run, actions) = world.ask_and_see(other);
    assert!(judges(&actions).is_empty());
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn a_request_too_large_for_every_slot_is_refused_with_both_sizes() {
    let mut world = World::new();
    for (worker, max_receive_bytes) in [(1, 1000), (2, 3000)] {
        world.attach(Offer {
            max_receive_bytes,
            ..offer("echo", worker)
        });
    }
    let (run, actions) = world.ask_and_see(ask("echo").bytes(4000));
    assert!(deliveries(&actions).is_empty());
    world.assert_failed(run, Code::PayloadTooLarge, &["4532 bytes", "at most 3000"]);
    assert!(!world.failure(run).retryable);
}

#[test]
fn a_large_request_goes_only_where_it_fits() {
    let mut world = World::new();
    let small = world.attach(Offer {
        max_receive_bytes: 1000,
        ..offer("echo", 1)
    });
    let large = world.attach(Offer {
        max_receive_bytes: 5000,
        ..offer("echo", 2)
    });
    let (run, _) = world.ask_and_see(ask("echo").bytes(4000));
    assert_eq!(world.held(small), None);
    assert_eq!(world.run_in(large), Some(run));
}

#[test]
fn a_schema_is_not_asked_about_what_its_slots_cannot_receive() {
    let mut world = World::new();
    world.attach(Offer {
        max_receive_bytes: 1000,
        ..with_schema(1, 1)
    });
    let (run, actions) = world.ask_and_see(ask("echo").bytes(4000));
    assert!(judges(&actions).is_empty());
    world.assert_failed(run, Code::PayloadTooLarge, &[]);
}

#[test]
fn two_sizes_with_one_schema_are_judged_once() {
    let mut world = World::new();
    world.attach(with_schema(1, 1));
    world.attach(Offer {
        max_receive_bytes: 1000,
        ..with_schema(1, 2)
    });
    let (run, actions) = world.ask_and_see(ask("echo"));
    assert_eq!(judges(&actions), [(run, 1)]);
}

#[test]
fn every_slot_of_a_condemned_schema_ends_and_what_is_in_it_fails() {
    let mut world = World::new();
    let text = bytes::Bytes::from_static(b"{\"title\":\"slow\"}");
    let slow = |worker| Offer {
        reply_schema_text: text.clone(),
        ..minimal("slow", worker)
    };
    let (busy, idle) = (world.attach(slow(1)), world.attach(slow(2)));
    let other = world.attach(minimal("other", 3));
    let (run, _) = world.ask_and_see(ask("slow"));
    let actions = world.apply(Event::Condemned {
        text,
        why: "too slow".to_owned(),
    });
    let mut ended = Vec::new();
    for action in &actions {
        match action {
            Action::End {
                slot,
                end: crate::slot::End::Refused(crate::slot::Refusal::Invalid(why)),
            } => {
                assert_eq!(why, "agent.reply_schema: too slow");
                ended.push(*slot);
            }
            Action::Answer { run: of, answer } => {
                assert_eq!(*of, run);
                let Err(failure) = &answer.outcome else {
                    panic!("{answer:?}");
                };
                assert_eq!(failure.code, Code::ProtocolViolation);
                assert!(failure.message.contains("too slow"), "{failure:?}");
            }
            Action::End { .. }
            | Action::Deliver { .. }
            | Action::Write(_)
            | Action::Load { .. }
            | Action::Reload { .. }
            | Action::Started { .. }
            | Action::Decided { .. } => panic!("{action:?}"),
            Action::Welcome { .. }
            | Action::Acknowledge { .. }
            | Action::Judge { .. }
            | Action::Grew { .. }
            | Action::Drain { .. }
            | Action::Note(_) => {}
        }
    }
    assert_eq!(ended, [busy, idle]);
    assert!(!ended.contains(&other));
}

#[test]
fn a_judgement_by_a_schema_that_was_not_asked_changes_nothing() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    let (run, _) = world.ask_and_see(ask("echo"));
    for takes in [true, false] {
        assert!(judged(&mut world, run, 9, takes).is_empty());
    }
    assert_eq!(world.held(slot), None);
    judged(&mut world, run, 1, true);
    assert_eq!(world.run_in(slot), Some(run));
}

#[test]
fn what_a_version_said_is_remembered_while_it_is_away() {
    let mut world = World::new();
    let slot = world.attach(with_schema(1, 1));
    world.ask_and_see(ask("echo").timeout(600 * SECOND));
    let (first, _) = world.ask_and_see(ask("echo"));
    judged(&mut world, RunId(uuid::Uuid::from_u128(1)), 1, true);
    judged(&mut world, first, 1, true);
    assert_eq!(world.run_in(slot).map(|run| run == first), Some(false));
    world.lose(slot);
    world.attach(with_schema(2, 2));
    assert!(!world.is_answered(first), "this one has yet to say");
    let slot = world.attach(with_schema(1, 1));
    assert_eq!(world.run_in(slot), Some(first), "it is not judged again");
}
