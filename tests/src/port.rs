//! A TCP port of 127.0.0.1 that nobody else is given, for a harness that comes later or comes back.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// Holds a port without listening on it: whoever connects is refused, and a harness can listen on
/// it, since both allow addresses to be used again.
pub struct Port {
    address: SocketAddr,
    #[expect(dead_code, reason = "holds the port")]
    socket: TcpSocket,
}

impl Port {
    /// Takes a free one.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn free() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket
            .set_reuseaddr(true)
            .expect("a new socket takes options");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(any).expect("a free port");
        let address = socket.local_addr().expect("a bound socket has an address");
        Self { address, socket }
    }

    /// Its address, host and port.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}
