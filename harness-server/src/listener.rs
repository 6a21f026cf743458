//! Sockets: where the harness listens, what it accepts, and how a connection is served.
//!
//! Owns the transport's settings (rule 12 of the protocol) and the fate of each connection; what
//! is said on it is `api`'s affair.

mod address;
mod first_bytes;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use crate::api::Router;
use crate::auth::Entry;
use crate::config::Limits;

pub use address::{Address, AddressError};
use first_bytes::{FirstBytes, Seen};

/// How long connections may take to close after the harness has left.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long accepting pauses when the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections that are still accepted after the harness was told to stop.
const LATE_CONNECTIONS: usize = 1024;

/// A socket that is listened on.
pub struct Listener {
    socket: Socket,
    entry: Entry,
    name: String,
}

enum Socket {
    Tcp(TcpListener),
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "removes the file when dropped")] SocketFile,
    ),
    /// Its file is somebody else's.
    Processes(UnixListener),
}

/// The file of a Unix socket; removed when the listener is dropped.
struct SocketFile(PathBuf);

/// Why an address cannot be listened on; says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// There is no address.
    #[error("there is no address to listen on: name one, such as 127.0.0.1:7070")]
    Nowhere,
    /// A limit is out of its range.
    #[error(transparent)]
    Limit(#[from] crate::config::LimitError),
    /// Others may enter the folder of a Unix socket.
    #[error(
        "others may enter the folder {}: chmod 700 it, or name a path in a folder that does not \
         exist yet", .0.display()
    )]
    OpenFolder(PathBuf),
    /// It is not an address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It is not loopback and nothing protects it.
    #[error(
        "{0} is not a loopback address and the harness has no TLS yet: listen on 127.0.0.1 or a \
         unix: socket, or pass --insecure if the network is trusted"
    )]
    NotLoopback(String),
    /// Somebody else listens there.
    #[error("{0} is in use: stop what listens there, or pass --listen with another address")]
    InUse(String),
    /// Something that is no socket has its name.
    #[error("{0} names a file that is not a socket: remove it, or choose another path")]
    NotASocket(String),
    /// The system refuses.
    #[error("cannot listen on {address}")]
    Refused {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
}

impl Listener {
    /// Binds an address. A Unix socket is made 0600 in a folder that is 0700 and made if missing; a
    /// socket file that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// That it is not loopback, in use, or refused by the system.
    pub async fn bind(address: &Address, insecure: bool) -> Result<Self, ListenError> {
        match address {
            Address::Tcp(host_port) => Self::bind_tcp(host_port, insecure).await,
            Address::Unix(path) => Self::bind_unix(path).await,
        }
    }

    /// The socket of the processes of a pool.
    #[must_use]
    pub fn of_processes(socket: UnixListener) -> Self {
        Self {
            socket: Socket::Processes(socket),
            entry: Entry::Processes,
            name: "the socket of a pool".to_owned(),
        }
    }

    /// The address, with the port the system gave.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A TCP address by which a process of this machine reaches it; none when it is no such port.
    #[must_use]
    pub fn dialled_here(&self) -> Option<String> {
        let Socket::Tcp(socket) = &self.socket else {
            return None;
        };
        let mut address = socket.local_addr().ok()?;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Some(address.to_string())
    }

    async fn bind_tcp(host_port: &str, insecure: bool) -> Result<Self, ListenError> {
        let refused = |source| ListenError::Refused {
            address: host_port.to_owned(),
            source,
        };
        let resolved: Vec<_> = tokio::net::lookup_host(host_port)
            .await
            .map_err(refused)?
            .collect();
        if !insecure && resolved.iter().any(|address| !address.ip().is_loopback()) {
            return Err(ListenError::NotLoopback(host_port.to_owned()));
        }
        let socket = TcpListener::bind(&*resolved)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => ListenError::InUse(host_port.to_owned()),
                _ => refused(source),
            })?;
        let name = socket.local_addr().map_err(refused)?.to_string();
        Ok(Self {
            socket: Socket::Tcp(socket),
            entry: Entry::Open,
            name,
        })
    }

    async fn bind_unix(path: &Path) -> Result<Self, ListenError> {
        let address = format!("unix:{}", path.display());
        let refused = |source| ListenError::Refused {
            address: address.clone(),
            source,
        };
        let folder = path.parent().unwrap_or(Path::new("/"));
        if folder.exists() {
            let mode = std::fs::metadata(folder)
                .map_err(refused)?
                .permissions()
                .mode();
            if mode & 0o077 != 0 {
                return Err(ListenError::OpenFolder(folder.to_owned()));
            }
        } else {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(folder)
                .map_err(refused)?;
        }
        if let Ok(found) = std::fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(ListenError::NotASocket(address));
            }
            if tokio::net::UnixStream::connect(path).await.is_ok() {
                return Err(ListenError::InUse(address));
            }
            std::fs::remove_file(path).map_err(refused)?;
        }
        let socket = UnixListener::bind(path).map_err(refused)?;
        let file = SocketFile(path.to_owned());
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(refused)?;
        Ok(Self {
            socket: Socket::Unix(socket, file),
            entry: Entry::Open,
            name: address,
        })
    }

    /// Accepts until `stop`; connections then close as `close` says.
    pub async fn serve(
        self,
        router: Router,
        limits: Limits,
        connections: TaskTracker,
        stop: CancellationToken,
        close: CancellationToken,
    ) {
        debug!(address = self.name, "listening");
        let mut late = LATE_CONNECTIONS;
        while late > 0 {
            // What has connected before `stop` is accepted before it is obeyed: it gets a typed
            // answer, not a reset.
            let accepted = tokio::select! {
                biased;
                accepted = self.accept() => accepted,
                () = stop.cancelled() => return,
            };
            late -= usize::from(stop.is_cancelled());
            match accepted {
                Ok((stream, peer)) => {
                    let connection = Connection {
                        entry: self.entry,
                        peer,
                        close: close.clone(),
                    };
                    connections.spawn(connection.serve(stream, router.clone(), limits.clone()));
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(Stream, Arc<str>)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = accept_tcp(listener).await?;
                Ok((Box::new(stream), peer.to_string().into()))
            }
            Socket::Unix(listener, _) | Socket::Processes(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Box::new(stream), "unix".into()))
            }
        }
    }
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Without it a small frame waits for the delayed ACK of the one before: 40 ms.
    stream.set_nodelay(true)?;
    Ok((stream, peer))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever removed it before has done our work.
        drop(std::fs::remove_file(&self.0));
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}
type Stream = Box<dyn Io>;

struct Connection {
    entry: Entry,
    peer: Arc<str>,
    close: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: Stream, router: Router, limits: Limits) {
        let seen = Arc::new(Seen::default());
        let io = TokioIo::new(FirstBytes::new(stream, seen.clone()));
        let service =
            TowerToHyperService::new(router.for_connection(self.entry, self.peer.clone()));
        let builder = builder(&limits);
        let connection = builder.serve_connection(io, service);
        tokio::pin!(connection);
        let begun = tokio::time::sleep(limits.hello_timeout);
        tokio::pin!(begun);
        let mut waiting = true;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    self.log(ended, &seen);
                    return;
                }
                () = &mut begun, if waiting => {
                    waiting = false;
                    if !seen.has_begun() {
                        info!(peer = %self.peer, "closed a connection that did not begin");
                        return;
                    }
                }
                () = self.close.cancelled() => break,
            }
        }
        connection.as_mut().graceful_shutdown();
        if tokio::time::timeout(CLOSE_TIMEOUT, connection)
            .await
            .is_err()
        {
            debug!(peer = %self.peer, "cut a connection that did not close");
        }
    }

    fn log(&self, ended: Result<(), Box<dyn std::error::Error + Send + Sync>>, seen: &Seen) {
        if seen.is_tls() {
            warn!(peer = %self.peer, "closed a TLS connection: this port speaks plain HTTP/2");
        } else if let Err(error) = ended {
            debug!(peer = %self.peer, %error, "a connection broke");
        }
    }
}

fn builder(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.hello_timeout);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout)
        .max_concurrent_streams(limits.connection_calls)
        // A burst of hang-ups must not end the innocent calls beside them; `api::hang_ups` limits
        // the rate instead.
        .max_pending_accept_reset_streams(limits.connection_calls as usize);
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn accepted_sockets_do_not_delay_small_frames() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let (accepted, _peer) = tokio::join!(accept_tcp(&listener), TcpStream::connect(address));
        assert!(accepted.expect("accepted").0.nodelay().expect("readable"));
    }

    #[tokio::test]
    async fn only_loopback_is_listened_on_unless_told_to() {
        let anywhere = Address::Tcp("0.0.0.0:0".to_owned());
        let refused = Listener::bind(&anywhere, false)
            .await
            .err()
            .expect("refused");
        assert!(refused.to_string().contains("--insecure"), "{refused}");
        assert!(Listener::bind(&anywhere, true).await.is_ok());
    }

    #[tokio::test]
    async fn a_unix_socket_is_its_owners_alone_and_goes_with_its_listener() {
        let folder = std::env::temp_dir().join(format!("harness-{}", uuid::Uuid::new_v4()));
        let path = folder.join("h.sock");
        let address = Address::Unix(path.clone());
        let listener = Listener::bind(&address, false).await.expect("bound");
        let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode();
        assert_eq!((mode(&folder) & 0o777, mode(&path) & 0o777), (0o700, 0o600));
        let second = Listener::bind(&address, false).await.err().expect("in use");
        assert!(matches!(second, ListenError::InUse(_)), "{second}");
        drop(listener);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a stale socket"));
        assert!(
            Listener::bind(&address, false).await.is_ok(),
            "a stale socket is replaced"
        );
        std::fs::write(&path, "precious").expect("a file");
        let refused = Listener::bind(&address, false).await.err();
        assert!(matches!(refused, Some(ListenError::NotASocket(_))));
        std::fs::remove_file(&path).expect("removed");
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("changed");
        let refused = Listener::bind(&address, false).await.err();
        assert!(matches!(refused, Some(ListenError::OpenFolder(_))));
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
