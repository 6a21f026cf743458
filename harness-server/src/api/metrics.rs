//! `GET /metrics`: how busy agents are and how pools fare, in the text format of Prometheus.
//!
//! Rendered when it is asked for, from what Core and the pools know anyway: nothing is counted for
//! it on the way of a request.

use std::collections::BTreeMap;
use std::fmt;

use axum::response::{IntoResponse, Response};
use http::header;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::dispatch::AgentLoad;
use crate::engine::Engine;
use crate::ids::AgentKey;
use crate::pool::{Climbs, PhaseView, ProcessView, State, Totals};
use crate::supervisor::{self, PoolView};

/// Answers with all there is at this moment.
pub(super) async fn answer(engine: Engine, pools: supervisor::Handle) -> Response {
    let snapshot = Snapshot {
        agents: engine.loads(),
        pools: pools.list().await,
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry).expect("a string must take what is written");
    let content_type = prometheus_text::CONTENT_TYPE;
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

/// What is told of one moment.
#[derive(Debug)]
struct Snapshot {
    agents: BTreeMap<AgentKey, AgentLoad>,
    pools: Vec<PoolView>,
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

impl Collector for Snapshot {
    fn encode(&self, mut to: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_agents(&mut to)?;
        self.encode_pools(&mut to)?;
        self.encode_failures(&mut to)?;
        self.encode_rungs(&mut to)
    }
}

impl Snapshot {
    fn encode_agents(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let queued = self.agents.iter().map(|(agent, load)| {
            let queued = load.queued;
            (of_agent(agent), queued)
        });
        let help = "Runs that wait for a slot of the agent";
        gauges(to, "harness_agent_queued_runs", help, queued)?;
        let slots = self.agents.iter().flat_map(|(agent, load)| {
            let states = [
                ("starting", load.starting),
                ("ready", load.ready),
                ("busy", load.busy),
                ("stopping", load.stopping),
            ];
            states.map(|(state, slots)| (with(of_agent(agent), "state", state), slots))
        });
        let help = "Slots of the agent by state; those busy have a run in work";
        gauges(to, "harness_agent_slots", help, slots)?;
        let away = self.agents.iter().map(|(agent, load)| {
            let away = load.away;
            (of_agent(agent), away)
        });
        let help = "Runs of the agent in work whose worker is waited for, as its call is lost";
        gauges(to, "harness_agent_away_runs", help, away)?;
        let unreleased = self.agents.iter().map(|(agent, load)| {
            let unreleased = load.unreleased;
            (of_agent(agent), unreleased)
        });
        let help = "Cancelled requests of the agent whose work has not stopped";
        gauges(to, "harness_agent_unreleased_requests", help, unreleased)
    }

    fn encode_pools(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Seats of the pool";
        let sizes = self.each(|pool| pool.pool.size);
        gauges(to, "harness_pool_size", help, sizes)?;
        let processes = self.pools.iter().flat_map(|pool| {
            STATES.map(|state| {
                let there = pool
                    .pool
                    .processes
                    .iter()
                    .filter(|one| state_of(one) == state);
                (with(of_pool(pool), "state", state), there.count())
            })
        });
        let help = "Processes of the pool by state";
        gauges(to, "harness_pool_processes", help, processes)?;
        let help = "Whether the pool is past its limits and starts nothing";
        let looping = self.each(|pool| usize::from(pool.pool.state == State::CrashLooping));
        gauges(to, "harness_pool_crash_looping", help, looping)
    }

    fn encode_failures(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let crashes = self.each(|pool| pool.pool.totals.crashes);
        let help = "Processes of the pool that died by themselves";
        counters(to, "harness_pool_crashes", help, None, crashes)?;
        let failed = self.each(|pool| pool.pool.totals.failed_starts);
        let help = "Processes of the pool that never took a request";
        counters(to, "harness_pool_failed_starts", help, None, failed)?;
        let restarts = self.each(|pool| pool.pool.totals.restarts);
        let help = "Processes started in a seat that had one before";
        counters(to, "harness_pool_restarts", help, None, restarts)
    }

    fn encode_rungs(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let climbs = self.rungs(|climbs| climbs.count);
        let help = "How often the pool stood on a rung of the kill ladder";
        counters(to, "harness_pool_stop_rungs", help, None, climbs)?;
        let seconds = self.rungs(|climbs| climbs.time.as_secs_f64());
        let help = "Time from the end of the call to the rung";
        let unit = Some(&Unit::Seconds);
        counters(to, "harness_pool_stop_rung", help, unit, seconds)
    }

    /// A figure of each pool.
    fn each<T>(&self, of: impl Fn(&PoolView) -> T) -> impl Iterator<Item = (Labels<'_>, T)> {
        self.pools.iter().map(move |pool| (of_pool(pool), of(pool)))
    }

    /// A figure of each rung of each pool.
    fn rungs<T>(&self, of: impl Fn(Climbs) -> T + Copy) -> impl Iterator<Item = (Labels<'_>, T)> {
        self.pools.iter().flat_map(move |pool| {
            let Totals {
                released,
                sigterm,
                sigkill,
                reaped,
                ..
            } = pool.pool.totals;
            let rungs = [
                ("released", released),
                ("sigterm", sigterm),
                ("sigkill", sigkill),
                ("reaped", reaped),
            ];
            rungs.map(|(rung, climbs)| (with(of_pool(pool), "rung", rung), of(climbs)))
        })
    }
}

/// The states a process can be in.
const STATES: [&str; 6] = [
    "starting", "ready", "detached", "leaving", "stopping", "exited",
];

fn state_of(process: &ProcessView) -> &'static str {
    let [starting, ready, detached, leaving, stopping, exited] = STATES;
    match process.phase {
        PhaseView::Starting => starting,
        PhaseView::Ready => ready,
        PhaseView::Detached => detached,
        PhaseView::Leaving => leaving,
        PhaseView::Stopping(_) => stopping,
        PhaseView::Exited => exited,
    }
}

fn of_agent(agent: &AgentKey) -> Labels<'_> {
    vec![("namespace", &agent.namespace), ("agent", &agent.name)]
}

fn of_pool(pool: &PoolView) -> Labels<'_> {
    of_agent(&pool.agent)
}

fn with<'a>(mut labels: Labels<'a>, name: &'static str, value: &'static str) -> Labels<'a> {
    labels.push((name, value));
    labels
}

fn gauges<'a>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    figures: impl Iterator<Item = (Labels<'a>, usize)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, figure) in figures {
        family.encode_family(&labels)?.encode_gauge(&figure)?;
    }
    Ok(())
}

fn counters<'a, T: prometheus_client::encoding::EncodeCounterValue>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    figures: impl Iterator<Item = (Labels<'a>, T)>,
) -> fmt::Result {
    let mut family = to.encode_descriptor(name, help, unit, MetricType::Counter)?;
    for (labels, figure) in figures {
        let mut one = family.encode_family(&labels)?;
        one.encode_counter::<NoLabelSet, _, u64>(&figure, None)?;
    }
    Ok(())
}
