//! A TCP proxy between a peer and the harness that a test can make misbehave: reset, close, stall,
//! or say GOAWAY in the harness's place.
//!
//! Orders go to the connections there are; later ones are carried faithfully. It runs on a runtime
//! of its own, and everything in it ends when it is dropped. For tests that are no async code.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;

use crate::proxy_frames::Frames;

const CONNECTIONS: usize = 64;
const ORDERS: usize = 16;
const CHUNK: usize = 16 << 10;

/// A running proxy.
pub struct Proxy {
    address: String,
    accepted: Arc<AtomicUsize>,
    orders: broadcast::Sender<Order>,
    #[expect(dead_code, reason = "runs the proxy until it is dropped")]
    runtime: Runtime,
}

/// What is stalled.
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
    Stall(Way),
    Flow,
    GoAway { last_stream: u32 },
}

impl Proxy {
    /// A proxy to the harness at `upstream`, on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// When it cannot start.
    #[track_caller]
    pub fn to(upstream: &str) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime must start");
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("port 0 can be bound");
        let address = listener.local_addr().expect("it listens").to_string();
        let (orders, _) = broadcast::channel(ORDERS);
        let accepted = Arc::new(AtomicUsize::new(0));
        runtime.spawn(accept(
            listener,
            upstream.to_owned(),
            orders.clone(),
            Arc::clone(&accepted),
        ));
        Self {
            address,
            accepted,
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
        self.accepted.load(Ordering::SeqCst)
    }

    /// Ends every connection with RST, to both sides.
    pub fn cut(&self) {
        self.order(Order::Cut);
    }

    /// Ends every connection with FIN, to both sides.
    pub fn close(&self) {
        self.order(Order::Close);
    }

    /// Forwards nothing more this way; the connections stay open.
    pub fn stall(&self, way: Way) {
        self.order(Order::Stall(way));
    }

    /// Forwards again, what was held back first.
    pub fn flow(&self) {
        self.order(Order::Flow);
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
    accepted: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    while let Ok((peer, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let orders = orders.subscribe();
        // A peer that finds no harness behind the proxy is reset, as one with no proxy is refused.
        match TcpStream::connect(&upstream).await {
            Ok(harness) if connections.len() < CONNECTIONS => {
                connections.spawn(carry(peer, harness, orders));
                accepted.fetch_add(1, Ordering::SeqCst);
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
) {
    let (stall_up, stalled_up) = watch::channel(false);
    let (stall_down, stalled_down) = watch::channel(false);
    // Nothing is put into the way up.
    let (_put_up, inject_up) = mpsc::channel(1);
    let (put_down, inject_down) = mpsc::channel(ORDERS);
    let told = async {
        loop {
            match orders.recv().await {
                Ok(Order::Cut) | Err(_) => return Err(io::ErrorKind::ConnectionReset.into()),
                Ok(Order::Close) => return Ok(()),
                Ok(Order::Stall(way)) => {
                    stall_up.send_replace(way != Way::ToPeer);
                    stall_down.send_replace(way != Way::ToHarness);
                }
                Ok(Order::Flow) => {
                    stall_up.send_replace(false);
                    stall_down.send_replace(false);
                }
                Ok(Order::GoAway { last_stream }) => {
                    // Never full: it has room for every order there can be.
                    let _ = put_down.send(Frames::go_away(last_stream)).await;
                }
            }
        }
    };
    let (from_peer, to_peer) = peer.split();
    let (from_harness, to_harness) = harness.split();
    let up = pump(
        from_peer,
        to_harness,
        Frames::of_client(),
        stalled_up,
        inject_up,
    );
    let down = pump(
        from_harness,
        to_peer,
        Frames::of_server(),
        stalled_down,
        inject_down,
    );
    let ended: io::Result<()> = tokio::select! {
        biased;
        ended = told => ended,
        ended = async { tokio::try_join!(up, down).map(|_| ()) } => ended,
    };
    if ended.is_err() {
        // Closed by the drop, and with RST; without it the drop sends FIN.
        drop((peer.set_zero_linger(), harness.set_zero_linger()));
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut frames: Frames,
    mut stalled: watch::Receiver<bool>,
    mut inject: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        if stalled.wait_for(|stalled| !stalled).await.is_err() {
            return Ok(());
        }
        let read = tokio::select! {
            biased;
            _ = stalled.changed() => continue,
            Some(frame) = inject.recv(), if frames.at_boundary() => {
                to.write_all(&frame).await?;
                continue;
            }
            read = from.read(&mut buffer) => read?,
        };
        if read == 0 {
            return to.shutdown().await;
        }
        let mut rest = &buffer[..read];
        while !rest.is_empty() {
            let (frame, after) = rest.split_at(frames.advance(rest));
            to.write_all(frame).await?;
            rest = after;
            if frames.at_boundary()
                && let Ok(frame) = inject.try_recv()
            {
                to.write_all(&frame).await?;
            }
        }
    }
}
