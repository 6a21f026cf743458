//! A process that runs: held, and ended when its pool says so.
//!
//! Owns the obeying of orders, and the telling of the engine which rungs that took.

use std::sync::Arc;

use tokio::sync::watch;

use crate::auth;
use crate::engine::Engine;
use crate::envelope::Failure;
use crate::ids::{Delivery, WorkerId};
use crate::journal::Proof;
use crate::pool::{Exit, Rung};

use super::child::Order;
use super::process::{Process, Signal};

/// A process that runs.
pub(super) struct Running {
    process: Process,
    worker: Worker,
    engine: Engine,
    orders: watch::Receiver<Order>,
    obeyed: Order,
}

/// Which worker a process is to the engine.
pub(super) enum Worker {
    /// One that this has made up.
    Given(WorkerId),
    /// What it said it is, once it did.
    Dialled(Arc<auth::Process>),
}

impl Worker {
    fn id(&self) -> Option<WorkerId> {
        match self {
            Self::Given(worker) => Some(*worker),
            Self::Dialled(process) => process.worker(),
        }
    }

    /// What it had in hand when it died, and what to tell of that where it died by itself.
    fn left_behind(&self) -> Option<(Delivery, Option<Failure>)> {
        match self {
            // Its call is never lost while it lives.
            Self::Given(_) => None,
            Self::Dialled(process) => {
                let delivery = process.in_hand().get()?;
                Some((delivery, process.known_death()?.failure))
            }
        }
    }

    /// Has it given no new request, and no new call.
    fn dismiss(&self) {
        match self {
            // Its session obeys by itself.
            Self::Given(_) => {}
            Self::Dialled(process) => process.dismiss(),
        }
    }
}

impl Running {
    pub(super) fn new(
        process: Process,
        worker: Worker,
        engine: Engine,
        orders: watch::Receiver<Order>,
    ) -> Self {
        Self {
            process,
            worker,
            engine,
            orders,
            obeyed: Order::Serve,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Which worker it is, once that is known.
    pub(super) fn worker(&self) -> Option<WorkerId> {
        self.worker.id()
    }

    /// Waits until the main process has ended, and obeys meanwhile.
    pub(super) async fn exited(&mut self) -> Exit {
        loop {
            tokio::select! {
                exit = self.process.exited() => return exit,
                order = next(&mut self.orders, self.obeyed) => self.obey(order),
            }
        }
    }

    /// Waits until nothing of it is left, and obeys meanwhile.
    pub(super) async fn reaped(&mut self) {
        loop {
            tokio::select! {
                _ = self.process.reaped() => break,
                order = next(&mut self.orders, self.obeyed) => self.obey(order),
            }
        }
        let proof = match self.obeyed {
            Order::Serve | Order::Dismiss => Proof::Exited,
            Order::Terminate | Order::Kill => Proof::Killed,
        };
        if let Some(worker) = self.worker.id() {
            if let Some((delivery, failure)) = self.worker.left_behind() {
                self.engine.perished(worker, delivery, failure);
            }
            self.engine.stopped(worker, proof);
        }
    }

    fn obey(&mut self, order: Order) {
        self.obeyed = order;
        match order {
            Order::Serve => {}
            Order::Dismiss => self.worker.dismiss(),
            Order::Terminate => self.signal(Signal::Term, Rung::Sigterm),
            Order::Kill => self.signal(Signal::Kill, Rung::Sigkill),
        }
    }

    fn signal(&self, signal: Signal, rung: Rung) {
        self.worker.dismiss();
        self.process.signal(signal);
        if let Some(worker) = self.worker.id() {
            self.engine.stopping(worker, rung);
        }
    }
}

/// Waits for an order above the one obeyed last.
async fn next(orders: &mut watch::Receiver<Order>, obeyed: Order) -> Order {
    match orders.wait_for(|order| *order > obeyed).await {
        Ok(order) => *order,
        // Its pool is gone, and with it whoever could wait for this process.
        Err(_) => Order::Kill.max(obeyed),
    }
}
