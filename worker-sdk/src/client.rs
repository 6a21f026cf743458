//! For applications: asking agents.
//!
//! Owns [`Harness`], the connection an application asks through, and in the modules below the
//! building of one ask, its three ways, and the plain types of runs and of the admin calls. Never
//! retries by itself: what can be retried is in the error, whether to is the application's to say.

pub mod admin;
mod ask;
mod events;
mod many;
mod operator;
mod plain;
mod retry_policy;
pub mod start;
pub mod pools;
pub mod runs;
mod watch;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use harness_proto::v1::admin_service_client::AdminServiceClient;
use harness_proto::v1::run_service_client::RunServiceClient;
use tokio::task::JoinSet;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::connect::{self, Address, Credential, Environment, Hearing, Place};
use crate::error::{Error, ErrorKind};
use crate::payload::{FromPayload, IntoPayload};
use crate::wire;

pub use crate::connect::{ADDRESS_VARIABLE, DEFAULT_ADDRESS, TOKEN_VARIABLE};
pub use ask::{Answer, Ask, OfMany, Streamed, Unary};
pub use events::{AttemptStarted, Event, Events};
pub use many::Many;
pub use retry_policy::RetryPolicy;
pub use watch::{Watch, WatchEvent, WatchRun};

/// The largest answer taken, in bytes. What an answer may really have is the harness's limit.
const RECEIVE_BYTES_MAX: usize = 64 << 20;
/// How long a connection may be made and say nothing before what took it is no harness.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A harness, as an application sees it. Cheap to clone; clones share one connection, which is
/// made again by itself when it broke.
///
/// ```no_run
/// use std::time::Duration;
/// use serde::Deserialize;
/// use worker_sdk::{Answer, Harness};
///
/// #[derive(Deserialize)]
/// struct Summary {
///     text: String,
/// }
///
/// # async fn run() -> Result<(), worker_sdk::Error> {
/// let harness = Harness::connect("http://127.0.0.1:7070").await?;
/// let answer: Answer<Summary> = harness
///     .ask("summarize", &"a long text")
///     .timeout(Duration::from_secs(20))
///     .await?;
/// println!("{}", answer.value.text);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Harness {
    shared: Arc<Shared>,
}

/// The connection, whose calls show who makes them.
type Carrier = InterceptedService<Channel, Credential>;

#[derive(Debug)]
struct Shared {
    channel: Carrier,
    address: Address,
    hearing: Hearing,
    /// The readers of the AskMany calls; the last clone takes them along.
    readers: Mutex<JoinSet<()>>,
}

impl Harness {
    /// Connects now. The address is host:port, http://host:port or unix:/absolute/path.
    ///
    /// # Errors
    /// `InvalidAddress`, or `Unreachable` with the address and the cause when nothing answers
    /// within 5 s.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        let place = Environment::read().place(Some(url.as_ref()))?;
        let connected = connect::connect(&place.address).await?;
        Ok(Self::over(place, connected))
    }

    /// Connects now to what `HARNESS_ADDRESS` says, else to `http://127.0.0.1:7070`. What
    /// `HARNESS_TOKEN` says is sent with each call.
    ///
    /// # Errors
    /// As [`Harness::connect`].
    pub async fn connect_default() -> Result<Self, Error> {
        let place = Environment::read().place(None)?;
        let connected = connect::connect(&place.address).await?;
        Ok(Self::over(place, connected))
    }

    /// Connects at the first call; that call then fails with `Unreachable` when nothing answers.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidAddress`.
    pub fn lazy(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::at(Environment::read().place(Some(url.as_ref()))?)
    }

    pub(crate) fn at(place: Place) -> Result<Self, Error> {
        let connected = connect::connect_lazily(&place.address)?;
        Ok(Self::over(place, connected))
    }

    fn over(place: Place, (channel, hearing): (Channel, Hearing)) -> Self {
        let shared = Shared {
            channel: InterceptedService::new(channel, place.credential),
            address: place.address,
            hearing,
            readers: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The address, in one of the three forms.
    pub fn address(&self) -> String {
        self.shared.address.to_string()
    }

    /// Asks an agent. The request is a value that becomes JSON, or a [`crate::Payload`] as it is;
    /// the answer is read as `R`, and is a [`crate::Payload`] as it came when `R` is that.
    /// Nothing is sent until the returned [`Ask`] is awaited.
    pub fn ask<R: FromPayload>(
        &self,
        agent: impl Into<String>,
        request: impl IntoPayload,
    ) -> Ask<R> {
        Ask::unary(Some(self.clone()), agent.into(), request.into_payload())
    }

    /// Asks an agent and tells what happens meanwhile: [`Events`] gives each piece of output, read
    /// as `O`, progress, log lines, attempts, and last the reply, read as `R`. It is pulled: who
    /// does not poll it slows the agent down, and dropping it hangs up.
    ///
    /// ```no_run
    /// use worker_sdk::client::Event;
    /// # async fn run(harness: worker_sdk::Harness) -> Result<(), worker_sdk::Error> {
    /// let mut events = harness.ask_stream::<String, String>("write", "a poem").await?;
    /// while let Some(event) = events.next().await {
    ///     match event? {
    ///         Event::Output(piece) => print!("{piece}"),
    ///         Event::Restarted(_) => println!("\n-- from the beginning"),
    ///         Event::Reply(answer) => println!("\n{} says: {}", answer.run_id, answer.value),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn ask_stream<O: FromPayload, R: FromPayload>(
        &self,
        agent: impl Into<String>,
        request: impl IntoPayload,
    ) -> Ask<(O, R), Streamed> {
        Ask::new(Streamed(self.clone()), agent.into(), request.into_payload())
    }

    /// Starts a durable run, which outlives this call, its caller and the harness itself; see
    /// [`start::StartRun`].
    ///
    /// ```no_run
    /// # async fn run(harness: worker_sdk::Harness) -> Result<(), worker_sdk::Error> {
    /// let run = harness
    ///     .start_run("report", &"2026-11")
    ///     .idempotency_key("report/2026-11")
    ///     .await?;
    /// println!("{} is on disk", run.run_id);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_run(
        &self,
        agent: impl Into<String>,
        request: impl IntoPayload,
    ) -> start::StartRun {
        let ask = Ask::new(
            start::Durable(self.clone()),
            agent.into(),
            request.into_payload(),
        );
        start::StartRun::new(ask)
    }

    /// Opens one call for many asks, the fastest way to ask a lot; see [`Many`].
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn ask_many(&self) -> Result<Many, Error> {
        Many::open(self).await
    }

    fn runs(&self) -> RunServiceClient<Carrier> {
        RunServiceClient::new(self.shared.channel.clone())
            .max_decoding_message_size(RECEIVE_BYTES_MAX)
    }

    fn admin(&self) -> AdminServiceClient<Carrier> {
        AdminServiceClient::new(self.shared.channel.clone())
            .max_decoding_message_size(RECEIVE_BYTES_MAX)
    }

    /// A call's answer, or why there is none. One that nobody ever says a word to is not waited
    /// for to its end.
    async fn called<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Error> {
        Ok(self.answered(call).await?.into_inner())
    }

    /// [`Harness::called`] with the metadata.
    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<tonic::Response<T>, Error> {
        let hearing = &self.shared.hearing;
        let heard = hearing.any();
        tokio::select! {
            biased;
            answer = call => answer.map_err(|status| self.failed(status)),
            () = hearing.silence(SILENCE_MAX), if !heard => Err(self.silent()),
        }
    }

    fn failed(&self, status: tonic::Status) -> Error {
        let shared = &self.shared;
        wire::status::caller_error(&shared.address, shared.hearing.any(), status)
    }

    fn silent(&self) -> Error {
        connect::silent_at(&self.shared.address)
    }

    /// Nothing came within `patience`.
    fn unanswered(&self, patience: Duration) -> Error {
        if !self.shared.hearing.any() {
            return self.silent();
        }
        let message = format!("the harness did not answer within {patience:?}");
        Error::new(ErrorKind::DeadlineExceeded, message)
    }

    /// Runs the reader of a call until the call has ended or the last clone of this is gone.
    fn spawn_reader(&self, reader: impl Future<Output = ()> + Send + 'static) {
        let readers = &self.shared.readers;
        let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
        while readers.try_join_next().is_some() {}
        readers.spawn(reader);
    }
}
