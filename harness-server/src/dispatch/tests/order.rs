//! The order of a queue is a sort, whatever joins and leaves it.

use proptest::prelude::*;

use super::{Code, Failure, MINUTE, Reply, RunId, World, ask, minimal};

/// What happens to the queue of a busy slot.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(i32),
    /// Cancels the one that is so far back.
    Cancel(usize),
    /// The slot answers and takes the next.
    Answer,
    /// The slot fails and takes the next; the run comes back after its wait.
    Fail,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (-2..3_i32).prop_map(Step::Ask),
        1 => (0..9_usize).prop_map(Step::Cancel),
        2 => Just(Step::Answer),
        1 => Just(Step::Fail),
    ];
    prop::collection::vec(step, 1..40)
}

fn walk(steps: Vec<Step>) {
    let mut world = World::with(|limits| limits.queue_runs = 100);
    let slot = world.attach(minimal("echo", 1));
    // The naive queue: priority and run, kept by a sort; runs are numbered as they are asked.
    let mut waiting: Vec<(std::cmp::Reverse<i32>, RunId)> = Vec::new();
    let mut held = None;
    for step in steps {
        match step {
            Step::Ask(priority) => {
                let mut next = ask("echo").priority(priority).timeout(600 * MINUTE);
                next.retry.max_attempts = 16;
                next.retry.initial_backoff = super::Duration::from_nanos(1);
                let (run, _) = world.ask_and_see(next);
                waiting.push((std::cmp::Reverse(priority), run));
            }
            Step::Cancel(back) => {
                let at = waiting.len().checked_sub(back + 1);
                if let Some(at) = at {
                    world.cancel(waiting.remove(at).1);
                }
            }
            Step::Answer if held.is_some() => {
                world.reply(slot);
                held = None;
            }
            Step::Fail => {
                if let Some(run) = held.take() {
                    let failure = Failure::new(Code::InvalidReply, "no");
                    world.reply_with(slot, Reply::Invalid(failure));
                    // The slot takes the next, or nothing, before the wait is over.
                    if !waiting.is_empty() {
                        held = Some(waiting.remove(0));
                    }
                    if !world.is_answered(run.1) {
                        waiting.push(run);
                        world.pass(super::Duration::from_micros(100));
                    }
                }
            }
            Step::Answer => {}
        }
        waiting.sort_unstable();
        if held.is_none() && !waiting.is_empty() {
            held = Some(waiting.remove(0));
        }
        assert_eq!(world.run_in(slot), held.map(|(_, run)| run));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_queue_is_worked_off_as_a_sort_says(steps in steps()) {
        walk(steps);
    }
}
