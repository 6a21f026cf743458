//! Row of interactive asks at a steady rate, with durable runs beside them and without.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use harness_tests::Process;
use harness_tests::raw::connect;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::{LOAD, PATIENCE, ask, durable};
use crate::load::Told;
use crate::report::{Row, median, row};
use crate::sides::role;

/// Interactive asks a second.
const ASKS_PER_SECOND: f64 = 500.0;

/// The share of their limit at which durable runs go on.
const SHARE: f64 = 0.3;

/// Calls in flight at most: what would be more is made later, and shows as a lower rate.
const AT_ONCE: usize = 1024;

/// The least time from one look at what is due to the next. The runtime's own timer is coarser; a
/// finer one takes a fifth of a processor for itself. No part of the time between two asks, so that
/// they meet the load at each of its moments.
const TICK: Duration = Duration::from_micros(700);

/// Ticks when something is due at a rate, until nobody listens.
fn ticks(per_second: f64) -> mpsc::Receiver<()> {
    let (tick, ticks) = mpsc::channel(1);
    let period = Duration::from_secs_f64(1.0 / per_second).max(TICK);
    std::thread::spawn(move || {
        let mut next = Instant::now();
        while tick.blocking_send(()).is_ok() {
            next += period;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    ticks
}

/// Makes what is due at a rate, for ever, whether what came before has ended or not.
async fn paced<F>(per_second: f64, make: impl Fn() -> F, mut ended: impl FnMut(F::Output))
where
    F: Future<Output: Send> + Send + 'static,
{
    let (begin, mut made) = (Instant::now(), 0);
    let (mut tasks, mut ticks) = (JoinSet::new(), ticks(per_second));
    loop {
        tokio::select! {
            Some(()) = ticks.recv() => {
                let due = (begin.elapsed().as_secs_f64() * per_second) as usize;
                while made < due && tasks.len() < AT_ONCE {
                    tasks.spawn(make());
                    made += 1;
                }
            }
            Some(task) = tasks.join_next() => ended(task.expect("a call must not panic")),
        }
    }
}

/// The client: asks at the rate, in a process of its own, and prints what came of it.
pub(crate) async fn run(address: String) {
    let channel = connect(&address).await;
    let latencies = RefCell::new(Vec::new());
    let asking = || {
        let channel = channel.clone();
        async move {
            let begin = Instant::now();
            ask(&channel).await;
            begin.elapsed()
        }
    };
    let load = paced(ASKS_PER_SECOND, asking, |took| {
        latencies.borrow_mut().push(took)
    });
    // The load itself never ends.
    drop(tokio::time::timeout(LOAD, load).await);
    crate::print(&Told::of(latencies.take(), LOAD).to_json());
}

async fn asks(address: &str) -> Told {
    let mut command = role("steady-asks");
    command.arg(address);
    let client = Process::start("steady asks", command);
    let finished = tokio::task::spawn_blocking(move || client.finish_within(PATIENCE));
    let finished = finished.await.expect("waiting must not panic");
    assert_eq!(finished.code, Some(0), "{finished}");
    Told::read(&finished.json())
}

/// What goes on beside the asks.
#[derive(Clone, Copy)]
pub(super) enum Load {
    Durable,
    /// More asks, over another connection: what the machine alone makes of two loads.
    Asks,
}

/// The asks with a load beside them, and how much of that ended in a second.
async fn asks_beside(address: &str, channel: &Channel, load: Load, per_second: f64) -> (Told, f64) {
    let (begin, ended) = (Instant::now(), Cell::new(0));
    let making = || {
        let channel = channel.clone();
        async move {
            match load {
                Load::Durable => durable(&channel).await,
                Load::Asks => ask(&channel).await,
            }
        }
    };
    let load = paced(per_second, making, |()| ended.set(ended.get() + 1));
    tokio::select! {
        told = asks(address) => (told, f64::from(ended.get()) / begin.elapsed().as_secs_f64()),
        () = load => unreachable!("a load has no end"),
    }
}

/// What asks feel of a load at a share of its limit, in turn with none; a bare commit is what the
/// bar of the slowest is in.
pub(super) async fn row_beside(
    (address, channel): (&str, &Channel),
    (load, limit): (Load, f64),
    commit: Duration,
    rounds: usize,
) -> Row {
    let (mut alone, mut beside, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        alone.push(asks(address).await);
        let (told, rate) = asks_beside(address, channel, load, limit * SHARE).await;
        beside.push(told);
        rates.push(rate);
    }
    let of = |told: &[Told], get: fn(&Told) -> f64| median(told.iter().map(get));
    let pairs = || beside.iter().zip(&alone);
    let p50 = median(pairs().map(|(beside, alone)| beside.p50_us / alone.p50_us));
    let p99 = median(pairs().map(|(beside, alone)| beside.p99_us - alone.p99_us));
    let (what, bar) = match load {
        Load::Durable => ("durable runs", "p50 1.25x; p99 +2 commits"),
        Load::Asks => ("other asks", ""),
    };
    row(
        format!("asks at {ASKS_PER_SECOND}/s beside {what} at {SHARE} of their limit"),
        format!(
            "p50 {:.0} us, p99 {:.0} us; alone {:.0} and {:.0} us: p50 {p50:.2}x, p99 {:+.1} \
             commits; {:.0} {what} a second",
            of(&beside, |told| told.p50_us),
            of(&beside, |told| told.p99_us),
            of(&alone, |told| told.p50_us),
            of(&alone, |told| told.p99_us),
            p99 / 1e6 / commit.as_secs_f64(),
            median(rates.into_iter()),
        ),
        bar,
    )
}
