//! What a peer that a test runs beside itself stands on: a runtime of its own and a free port.

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// A runtime of one thread, a listener on a free port of 127.0.0.1, and its host and port.
///
/// # Panics
/// When there is none.
#[track_caller]
pub(crate) fn listen() -> (Runtime, TcpListener, String) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime must start");
    let listener = runtime
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("port 0 can be bound");
    let address = listener.local_addr().expect("it listens").to_string();
    (runtime, listener, address)
}
