//! For applications: asking agents.
//!
//! Owns [`Harness`], the connection an application asks through, and in the modules below the
//! building of one ask and the plain types of the admin calls. Never retries by itself: what can
//! be retried is in the error, whether to is the application's to say.

pub mod admin;
mod ask;

use std::future::Future;

use harness_proto::v1::admin_service_client::AdminServiceClient;
use harness_proto::v1::run_service_client::RunServiceClient;
use tonic::transport::Channel;

use crate::connect::{self, Address};
use crate::error::Error;
use crate::payload::{FromPayload, IntoPayload};
use crate::wire;

pub use crate::connect::{ADDRESS_VARIABLE, DEFAULT_ADDRESS};
pub use ask::{Answer, Ask};

/// The largest answer taken, in bytes. What an answer may really have is the harness's limit.
const RECEIVE_BYTES_MAX: usize = 64 << 20;

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
    address: Address,
    channel: Channel,
}

impl Harness {
    /// Connects now. The address is host:port, http://host:port or unix:/absolute/path.
    ///
    /// # Errors
    /// `InvalidAddress`, or `Unreachable` with the address and the cause when nothing answers
    /// within 5 s.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        let address = Address::parse(url.as_ref())?;
        let channel = connect::connect(&address).await?;
        Ok(Self { address, channel })
    }

    /// Connects now to what `HARNESS_ADDRESS` says, else to `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// As [`Harness::connect`].
    pub async fn connect_default() -> Result<Self, Error> {
        let address = connect::resolve(None)?;
        let channel = connect::connect(&address).await?;
        Ok(Self { address, channel })
    }

    /// Connects at the first call; that call then fails with `Unreachable` when nothing answers.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidAddress`.
    pub fn lazy(url: impl AsRef<str>) -> Result<Self, Error> {
        Self::at(Address::parse(url.as_ref())?)
    }

    pub(crate) fn at(address: Address) -> Result<Self, Error> {
        let channel = connect::connect_lazily(&address)?;
        Ok(Self { address, channel })
    }

    /// The address, in one of the three forms.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Asks an agent. The request is a value that becomes JSON, or a [`crate::Payload`] as it is;
    /// the answer is read as `R`, and is a [`crate::Payload`] as it came when `R` is that.
    /// Nothing is sent until the returned [`Ask`] is awaited.
    pub fn ask<R: FromPayload>(
        &self,
        agent: impl Into<String>,
        request: impl IntoPayload,
    ) -> Ask<R> {
        Ask::new(Some(self.clone()), agent.into(), request.into_payload())
    }

    /// The agents known in a namespace; empty means `default`.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn agents(&self, namespace: &str) -> Result<Vec<admin::Agent>, Error> {
        let request = harness_proto::v1::ListAgentsRequest {
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.admin().list_agents(request)).await?;
        Ok(answer.agents.into_iter().map(wire::admin::agent).collect())
    }

    /// The workers attached in a namespace, of one agent or, when `agent` is empty, of all.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn workers(&self, namespace: &str, agent: &str) -> Result<Vec<admin::Worker>, Error> {
        let request = harness_proto::v1::ListWorkersRequest {
            namespace: namespace.to_owned(),
            agent: agent.to_owned(),
        };
        let answer = self.called(self.admin().list_workers(request)).await?;
        Ok(answer
            .workers
            .into_iter()
            .map(wire::admin::worker)
            .collect())
    }

    /// Asks a worker, by id or name, to finish, leave and not come back. An empty namespace means
    /// `default`; the reason is for its log.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn drain_worker(
        &self,
        namespace: &str,
        worker: &str,
        reason: &str,
    ) -> Result<Option<admin::Worker>, Error> {
        let request = harness_proto::v1::DrainWorkerRequest {
            worker: worker.to_owned(),
            reason: reason.to_owned(),
            namespace: namespace.to_owned(),
        };
        let answer = self.called(self.admin().drain_worker(request)).await?;
        Ok(answer.worker.map(wire::admin::worker))
    }

    /// What the server is and what it allows.
    ///
    /// # Errors
    /// `Unreachable`, or what the harness answers.
    pub async fn server_info(&self) -> Result<admin::ServerInfo, Error> {
        let request = harness_proto::v1::GetServerInfoRequest {};
        let answer = self.called(self.admin().get_server_info(request)).await?;
        Ok(wire::admin::server_info(answer))
    }

    fn runs(&self) -> RunServiceClient<Channel> {
        RunServiceClient::new(self.channel.clone()).max_decoding_message_size(RECEIVE_BYTES_MAX)
    }

    fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone()).max_decoding_message_size(RECEIVE_BYTES_MAX)
    }

    async fn called<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Error> {
        match call.await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(wire::status::caller_error(&self.address, status)),
        }
    }
}
