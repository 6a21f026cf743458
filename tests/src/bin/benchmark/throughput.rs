//! Rows of throughput: floor and harness in turn, medians of all rounds.

use std::time::Duration;

use harness_tests::source;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::load::Load;
use crate::report::{Row, median, row};
use crate::sides::{Kind, Measured, Side};

/// How long and how often each load is asked.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Effort {
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    pub(crate) seconds: u64,
    /// Rounds; each asks every load of both sides in turn
    #[arg(long, default_value_t = 5)]
    pub(crate) rounds: usize,
}

/// A load, and what the ratio to the floor has to be.
struct Shape {
    name: &'static str,
    load: Load,
    bar: &'static str,
}

fn load(inflight: usize, connections: usize, many: bool, effort: Effort) -> Load {
    Load {
        inflight,
        seconds: Duration::from_secs(effort.seconds),
        bytes: 64,
        many,
        connections,
    }
}

/// Unary and many, 1, 64 and 512 in flight, 1 and 4 connections; raw and typed.
pub(crate) fn all(effort: Effort) -> Vec<Row> {
    let sides = [Kind::Floor, Kind::Raw, Kind::Typed].map(Side::start);
    let shape = |name, inflight, connections, many, bar| Shape {
        name,
        load: load(inflight, connections, many, effort),
        bar,
    };
    let shapes = [
        shape("unary, 1 in flight", 1, 1, false, ""),
        shape("unary, 64 in flight", 64, 1, false, "0.75; server CPU 1.6x"),
        shape("unary, 64 in flight, 4 connections", 64, 4, false, "0.70"),
        shape("unary, 512 in flight", 512, 1, false, ""),
        shape("unary, 512 in flight, 4 connections", 512, 4, false, ""),
        shape("many, 1 in flight", 1, 1, true, ""),
        shape("many, 64 in flight", 64, 1, true, "2.0 of the unary floor"),
        shape("many, 64 in flight, 4 connections", 64, 4, true, ""),
        shape("many, 512 in flight", 512, 1, true, ""),
        shape("many, 512 in flight, 4 connections", 512, 4, true, ""),
    ];
    let mut measured: Vec<[Vec<Measured>; 3]> = Vec::new();
    measured.resize_with(shapes.len(), Default::default);
    for round in 0..effort.rounds {
        for (shape, measured) in shapes.iter().zip(&mut measured) {
            for at in 0..sides.len() {
                // Whoever comes first in a round comes last in the next.
                let at = if round % 2 == 0 {
                    at
                } else {
                    sides.len() - 1 - at
                };
                measured[at].push(sides[at].ask(&shape.load));
            }
        }
    }
    let mut rows = Vec::new();
    let mut unary_floor = Vec::new();
    for (shape, [floor, raw, typed]) in shapes.iter().zip(&measured) {
        if !shape.load.many {
            unary_floor.push((shape.load, rate(floor)));
        }
        rows.push(throughput(
            &format!("floor: {}", shape.name),
            floor,
            None,
            "",
        ));
        rows.push(throughput(shape.name, raw, Some(floor), shape.bar));
        rows.push(throughput(
            &format!("typed: {}", shape.name),
            typed,
            Some(floor),
            "",
        ));
        let unary = Load {
            many: false,
            ..shape.load
        };
        let against = unary_floor.iter().find(|(load, _)| *load == unary);
        if let (true, Some((_, floor))) = (shape.load.many, against) {
            let ratio = rate(raw) / floor;
            rows.push(row(
                format!("{}, against the unary floor", shape.name),
                format!("{ratio:.2}"),
                shape.bar,
            ));
        }
    }
    rows
}

/// One in flight with every process on one processor.
pub(crate) fn pinned(effort: Effort) -> Vec<Row> {
    let own = Pid::from_raw(0);
    let before = sched_getaffinity(own).expect("the processors of this process");
    let first = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.expect("a processor"))
        .expect("a processor that is there");
    // Inherited by all that is started until it is put back.
    sched_setaffinity(own, &one).expect("a processor of our own");
    let sides = [Kind::Floor, Kind::Raw].map(Side::start);
    let load = load(1, 1, false, effort);
    let mut measured = [Vec::new(), Vec::new()];
    for _ in 0..effort.rounds {
        for (side, measured) in sides.iter().zip(&mut measured) {
            measured.push(side.ask(&load));
        }
    }
    sched_setaffinity(own, &before).expect("the processors there were");
    let p50 = |measured: &[Measured]| median(measured.iter().map(|one| one.told.p50_us));
    let (floor, harness) = (p50(&measured[0]), p50(&measured[1]));
    vec![row(
        "unary, 1 in flight, all on one processor: p50".to_owned(),
        format!(
            "{harness:.0} us, floor {floor:.0} us, {:.2}x",
            harness / floor
        ),
        "1.3x",
    )]
}

/// A worker in Python with 64 slots, on the floor and on the harness; nothing where there is no
/// Python.
pub(crate) fn python(effort: Effort) -> Vec<Row> {
    let name = "Python asyncio worker, 64 slots, 64 in flight";
    let script = source("tests/python/echo_asyncio.py");
    if harness_tests::python(&script).is_none() {
        return vec![row(
            name.to_owned(),
            "not measured: no Python".to_owned(),
            "0.8",
        )];
    }
    let start = |kind, bare: bool| {
        Side::start_with(kind, |address| {
            let mut worker = harness_tests::python(&script).expect("asked before");
            worker.args([address, "64"]);
            worker.args(bare.then_some("--bare"));
            worker
        })
    };
    let sides = [start(Kind::Floor, true), start(Kind::Raw, false)];
    let load = load(64, 1, false, effort);
    let mut measured = [Vec::new(), Vec::new()];
    for _ in 0..effort.rounds {
        for (side, measured) in sides.iter().zip(&mut measured) {
            measured.push(side.ask(&load));
        }
    }
    vec![
        throughput(&format!("floor: {name}"), &measured[0], None, ""),
        throughput(name, &measured[1], Some(&measured[0]), "0.8"),
    ]
}

fn rate(measured: &[Measured]) -> f64 {
    median(measured.iter().map(|one| one.told.requests_per_s))
}

fn throughput(name: &str, measured: &[Measured], floor: Option<&Vec<Measured>>, bar: &str) -> Row {
    let of = |get: fn(&Measured) -> f64| median(measured.iter().map(get));
    let mut text = format!(
        "{:.1} k/s, p50 {:.0} us, p99 {:.0} us, CPU {:.1} + {:.1} + {:.1} us",
        of(|one| one.told.requests_per_s) / 1e3,
        of(|one| one.told.p50_us),
        of(|one| one.told.p99_us),
        of(|one| one.cpu_us[0]),
        of(|one| one.cpu_us[1]),
        of(|one| one.cpu_us[2]),
    );
    if let Some(floor) = floor {
        // Pair by pair: a machine that drifts drifts for both.
        let pairs = || measured.iter().zip(floor);
        let ratio =
            median(pairs().map(|(one, floor)| one.told.requests_per_s / floor.told.requests_per_s));
        let cpu = median(pairs().map(|(one, floor)| one.cpu_us[0] / floor.cpu_us[0]));
        text.push_str(&format!("; {ratio:.2} of the floor, server CPU {cpu:.2}x"));
    }
    row(name.to_owned(), text, bar)
}
