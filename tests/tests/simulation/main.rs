//! The simulation: Core with queues in place of pumps, driven by a seed through workers, callers,
//! faults and leaps of a virtual clock, and after every event held against a second account of
//! what must be (`model`).
//!
//! `HARNESS_SEEDS=100000` says how many seeds to run, `HARNESS_SEED=7` replays one and prints
//! every event. A failure prints the seed and that command. What planted faults it catches is in
//! `tests/planted-faults`.

mod asks;
mod calls;
mod durable;
mod frames;
mod model;
mod pools;
mod random;
mod setting;
mod tally;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tally::Tally;
use world::World;

/// Seeds when nothing else is said: some seconds, unoptimised.
const SEEDS: u64 = 10_000;

/// Seeds with `CI=true`: about a minute, unoptimised.
const SEEDS_CI: u64 = 100_000;

/// One seed of so many is of durable runs.
const DURABLE: u64 = 3;

/// So many seeds meet everything the tally lists.
const SEEDS_FOR_ALL: u64 = 10_000;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .expect("a seed or their count must be a number"),
    )
}

/// Says which seed failed.
struct Running(u64);

impl Drop for Running {
    #[expect(clippy::print_stderr, reason = "it is how a person replays the seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!(
                "seed {seed} failed; replay: HARNESS_SEED={seed} cargo test --release -p \
                 harness-tests --test simulation -- --nocapture"
            );
        }
    }
}

fn simulate(seed: u64, trace: bool, tally: &mut Tally) {
    let running = Running(seed);
    match seed % DURABLE {
        1 => durable::World::new(seed, trace).run(tally),
        _ => World::new(seed, trace).run(tally),
    }
    drop(running);
}

#[test]
fn no_seed_breaks_a_rule() {
    if let Some(seed) = number("HARNESS_SEED") {
        return simulate(seed, true, &mut Tally::default());
    }
    let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let usual = if is_ci { SEEDS_CI } else { SEEDS };
    let seeds = number("HARNESS_SEEDS").unwrap_or(usual);
    let began = Instant::now();
    let next = AtomicU64::new(0);
    let all = Mutex::new(Tally::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut tally = Tally::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    simulate(seed, false, &mut tally);
                }
                all.lock().expect("no thread failed").add(&tally);
            });
        }
    });
    let tally = all.into_inner().expect("no thread failed");
    let took = began.elapsed();
    eprintln!("{tally}");
    eprintln!(
        "{seeds} seeds, {} events, in {:.1} s: {:.0} us a seed on {threads} threads",
        tally.events,
        took.as_secs_f64(),
        took.as_micros() as f64 * threads as f64 / seeds.max(1) as f64,
    );
    if seeds >= SEEDS_FOR_ALL {
        tally.check_everything_was_met();
    }
}
