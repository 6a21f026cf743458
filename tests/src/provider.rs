//! A model provider over real HTTP that answers what it is told to, with the faults of real ones.
//!
//! Owns the answers, in order, and what was asked. It knows no provider's format: bodies are the
//! test's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, Response};
use futures_util::stream::{self, Stream};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A provider on a port of its own, until it is dropped.
pub struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    replies: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<Asked>>,
}

/// What was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The path.
    pub path: String,
    /// What stands behind it, without the question mark.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: serde_json::Value,
}

/// What is answered.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    fault: Fault,
}

/// What goes wrong with a body.
#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// The connection breaks behind so many bytes.
    Cut(usize),
    /// Nothing comes behind so many bytes.
    Stall(usize),
    /// So many bytes at a time, with a pause between.
    Slow(usize, Duration),
}

impl Reply {
    /// A body in one piece.
    pub fn json(status: u16, body: impl Into<String>) -> Self {
        Self::of(status, "application/json", body.into())
    }

    /// A body of events.
    pub fn events(body: impl Into<String>) -> Self {
        Self::of(200, "text/event-stream", body.into())
    }

    fn of(status: u16, kind: &str, body: String) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), kind.to_owned())],
            body: body.into(),
            fault: Fault::None,
        }
    }

    /// With this header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this header in the place of all others.
    #[must_use]
    pub fn only_header(mut self, name: &str, value: &str) -> Self {
        self.headers.clear();
        self.header(name, value)
    }

    /// The connection breaks behind so many bytes.
    #[must_use]
    pub fn cut(mut self, at: usize) -> Self {
        self.fault = Fault::Cut(at);
        self
    }

    /// Nothing comes behind so many bytes.
    #[must_use]
    pub fn stall(mut self, at: usize) -> Self {
        self.fault = Fault::Stall(at);
        self
    }

    /// So many bytes at a time, with a pause between.
    #[must_use]
    pub fn slow(mut self, bytes: usize, pause: Duration) -> Self {
        self.fault = Fault::Slow(bytes.max(1), pause);
        self
    }

    fn response(self) -> Response<Body> {
        let body = match self.fault {
            Fault::None => Body::from(self.body),
            Fault::Cut(at) => Body::from_stream(broken(self.body.slice(..at))),
            Fault::Stall(at) => Body::from_stream(stalled(self.body.slice(..at))),
            Fault::Slow(bytes, pause) => Body::from_stream(slowed(self.body, bytes, pause)),
        };
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(body).expect("a status and headers of a test")
    }
}

type Chunks = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A body that ends with an error: hyper then breaks the connection.
fn broken(begin: Bytes) -> Chunks {
    let parts = [Some(begin), None];
    Box::pin(stream::unfold(parts.into_iter(), |mut parts| async move {
        match parts.next()? {
            Some(begin) => Some((Ok(begin), parts)),
            None => {
                // What is before must have left, or the peer sees no begin.
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((Err(io::ErrorKind::ConnectionReset.into()), parts))
            }
        }
    }))
}

fn stalled(begin: Bytes) -> Chunks {
    Box::pin(stream::unfold(Some(begin), |begin| async move {
        match begin {
            Some(begin) => Some((Ok(begin), None)),
            None => std::future::pending().await,
        }
    }))
}

fn slowed(body: Bytes, bytes: usize, pause: Duration) -> Chunks {
    Box::pin(stream::unfold(body, move |mut rest| async move {
        if rest.is_empty() {
            return None;
        }
        tokio::time::sleep(pause).await;
        let part = rest.split_to(bytes.min(rest.len()));
        Some((Ok(part), rest))
    }))
}

impl Provider {
    /// Answers these, one a request; a request beyond them is answered 418.
    ///
    /// # Panics
    /// When there is no port.
    pub async fn start(replies: impl IntoIterator<Item = Reply>) -> Self {
        let shared = Arc::new(Shared::default());
        shared.replies().extend(replies);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener
            .local_addr()
            .expect("a bound socket has an address");
        let answering = Arc::clone(&shared);
        let app = axum::Router::new().fallback(move |request: Request<Body>| {
            let shared = Arc::clone(&answering);
            async move { Ok::<_, Infallible>(shared.answer(request).await) }
        });
        let serving = tokio::spawn(async move {
            // It serves until its task is ended.
            let _ = axum::serve(listener, app).await;
        });
        Self {
            address,
            shared,
            serving,
        }
    }

    /// Its address, as a base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked().clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Shared {
    fn replies(&self) -> std::sync::MutexGuard<'_, VecDeque<Reply>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 24)
            .await
            .unwrap_or_default();
        self.asked().push(Asked {
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            headers: head.headers,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        });
        let reply = self.replies().pop_front();
        let over = || Reply::json(418, r#"{"error":{"message":"no more replies"}}"#);
        reply.unwrap_or_else(over).response()
    }
}
