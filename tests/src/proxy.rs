//! A TCP proxy between a peer and the harness that a test can make misbehave: reset, close, stall,
//! break off after so many bytes, reset the calls, say GOAWAY in the harness's place, or swallow
//! every frame and answer PINGs itself, or be down for a while.
//!
//! Orders go to the connections there are; later ones are carried faithfully. It runs on a runtime
//! of its own, and everything in it ends when it is dropped. For tests that are no async code.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

use crate::loopback;
use crate::proxy_frames::Frames;
use crate::proxy_way::{Carrying, Mode};

const CONNECTIONS: usize = 64;
const ORDERS: usize = 16;

/// A running proxy.
pub struct Proxy {
    address: String,
    shared: Arc<Shared>,
    orders: broadcast::Sender<Order>,
    #[expect(dead_code, reason = "runs the proxy until it is dropped")]
    runtime: Runtime,
}

/// What has happened so far, and what becomes of the next connection.
#[derive(Debug, Default)]
struct Shared {
    down: AtomicBool,
    accepted: AtomicUsize,
    pings: Arc<AtomicUsize>,
}

/// Which way an order is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// What the peer sends.
    ToHarness,
    /// What the harness sends.
    ToPeer,
    /// Both.
    Both,
}

#[derive(Debug, Clone)]
enum Order {
    Cut,
    Close,
    Go(Way, Mode),
    ResetCalls,
    GoAway { last_stream: u32 },
}

impl Proxy {
    /// A proxy to the harness at `upstream`, on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When it cannot start.
    #[track_caller]
    pub fn to(upstream: &str) -> Self {
        let (runtime, listener, address) = loopback::listen();
        let (orders, _) = broadcast::channel(ORDERS);
        let shared = Arc::new(Shared::default());
        runtime.spawn(accept(
            listener,
            upstream.to_owned(),
            orders.clone(),
            Arc::clone(&shared),
        ));
        Self {
            address,
            shared,
            orders,
            runtime,
        }
    }

    /// Where it listens, host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many connections it has carried so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many PINGs it has answered itself.
    pub fn pings(&self) -> usize {
        self.shared.pings.load(Ordering::SeqCst)
    }

    /// Ends every connection with RST, to both sides.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Cuts every connection, and each that comes until [`Proxy::go_up`].
    pub fn go_down(&self) {
        self.shared.down.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Carries connections again.
    pub fn go_up(&self) {
        self.shared.down.store(false, Ordering::SeqCst);
    }

    /// Ends every connection with FIN, to both sides.
    pub fn close(&self) {
        self.order(Order::Close);
    }

    /// Ends every connection with RST, to both sides, once so many more bytes went this way.
    pub fn cut_after(&self, way: Way, bytes: usize) {
        self.order(Order::Go(way, Mode::Only(Arc::new(bytes.into()))));
    }

    /// Forwards nothing more this way; the connections stay open.
    pub fn stall(&self, way: Way) {
        self.order(Order::Go(way, Mode::Stalled));
    }

    /// Forwards again, what was held back first.
    pub fn flow(&self) {
        self.order(Order::Go(Way::Both, Mode::Faithful));
    }

    /// Drops every frame that goes this way from now on but answers to PINGs, and answers PINGs
    /// itself: the connections look alive and carry no call. There is no way back.
    pub fn swallow(&self, way: Way) {
        self.order(Order::Go(way, Mode::Swallowing));
    }

    /// Resets every call there is (RST_STREAM), to both sides; the connections live on.
    pub fn reset_calls(&self) {
        self.order(Order::ResetCalls);
    }

    /// Says GOAWAY (NO_ERROR) to the peers: streams above `last_stream` were not processed.
    pub fn go_away(&self, last_stream: u32) {
        self.order(Order::GoAway { last_stream });
    }

    fn order(&self, order: Order) {
        // Fails when there is no connection; then there is nothing to do.
        let _ = self.orders.send(order);
    }
}

async fn accept(
    listener: TcpListener,
    upstream: String,
    orders: broadcast::Sender<Order>,
    shared: Arc<Shared>,
) {
    let mut connections = JoinSet::new();
    while let Ok((peer, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let orders = orders.subscribe();
        if shared.down.load(Ordering::SeqCst) {
            drop(peer.set_zero_linger());
            continue;
        }
        // A peer that finds no harness behind the proxy is reset, as one with no proxy is refused.
        match TcpStream::connect(&upstream).await {
            Ok(harness) if connections.len() < CONNECTIONS => {
                // As the two ends have it: small frames would wait 40 ms for each other.
                for stream in [&peer, &harness] {
                    stream
                        .set_nodelay(true)
                        .expect("an open socket must take it");
                }
                connections.spawn(carry(peer, harness, orders, Arc::clone(&shared.pings)));
                shared.accepted.fetch_add(1, Ordering::SeqCst);
            }
            Ok(_) | Err(_) => drop(peer.set_zero_linger()),
        }
    }
}

/// Carries one connection until both sides have closed it, one has reset it or the test ends it.
async fn carry(
    mut peer: TcpStream,
    mut harness: TcpStream,
    mut orders: broadcast::Receiver<Order>,
    pings: Arc<AtomicUsize>,
) {
    let (go_up, up_mode) = watch::channel(Mode::Faithful);
    let (go_down, down_mode) = watch::channel(Mode::Faithful);
    // A PING is answered into the other way. Not in step with orders, so there is room for both.
    let (put_up, inject_up) = mpsc::channel(2 * ORDERS);
    let (put_down, inject_down) = mpsc::channel(2 * ORDERS);
    let newest_stream = AtomicU32::new(0);
    let up = Carrying {
        frames: Frames::of_client(),
        mode: up_mode,
        inject: inject_up,
        answers: put_down.clone(),
        pings: Arc::clone(&pings),
        newest_stream: Some(&newest_stream),
    };
    let down = Carrying {
        frames: Frames::of_server(),
        mode: down_mode,
        inject: inject_down,
        answers: put_up.clone(),
        pings,
        newest_stream: None,
    };
    let told = async {
        loop {
            match orders.recv().await {
                Ok(Order::Cut) | Err(_) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(Order::Close) => return Ok(()),
                Ok(Order::Go(way, mode)) => {
                    if way != Way::ToPeer {
                        go_up.send_replace(mode.clone());
                    }
                    if way != Way::ToHarness {
                        go_down.send_replace(mode);
                    }
                }
                Ok(Order::ResetCalls) => {
                    let resets = Frames::resets(newest_stream.load(Ordering::SeqCst));
                    // Fails when that way is closed; then nobody is left to be told.
                    let _ = put_down.send(resets.clone()).await;
                    let _ = put_up.send(resets).await;
                }
                Ok(Order::GoAway { last_stream }) => {
                    let _ = put_down.send(Frames::go_away(last_stream)).await;
                }
            }
        }
    };
    let (from_peer, to_peer) = peer.split();
    let (from_harness, to_harness) = harness.split();
    let ended: io::Result<()> = tokio::select! {
        biased;
        ended = told => ended,
        ended = async {
            tokio::try_join!(up.run(from_peer, to_harness), down.run(from_harness, to_peer))
        } => ended.map(|_| ()),
    };
    if ended.is_err() {
        // Closed by the drop, and with RST; without it the drop sends FIN.
        drop((peer.set_zero_linger(), harness.set_zero_linger()));
    }
}
