//! `WorkerService`: one Attach call is one session.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_stream::{Stream, StreamExt};
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;

use harness_proto::relay;
use harness_proto::relay::worker_service_server::WorkerService;

use crate::auth::{AUDIT, Attendance, Principal};
use crate::engine::{Engine, Outbox, Outgoing};
use crate::session::Session;
use crate::slot::Refusal;

use super::attach_body::AttachOutbox;
use super::router::Arrival;
use super::{frames, status};

/// The service.
pub(super) struct Workers {
    engine: Engine,
    sessions: TaskTracker,
}

impl Workers {
    pub(super) fn new(engine: Engine, sessions: TaskTracker) -> Self {
        Self { engine, sessions }
    }
}

#[tonic::async_trait]
impl WorkerService for Workers {
    type AttachStream = AttachStream;

    async fn attach(
        &self,
        request: Request<Streaming<relay::AttachRequest>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let principal = Arrival::principal(request.extensions());
        let (peer, attendance) = match &principal {
            Principal::Anonymous => (Arrival::peer(request.extensions()), None),
            Principal::Process(process) => {
                let attendance = process.enter().await;
                let attendance = attendance.ok_or_else(|| second_call(&principal))?;
                ("pool".into(), Some(attendance))
            }
        };
        let outbox = Arc::new(Outbox::default());
        let engine = self.engine.clone();
        let inbound = request
            .into_inner()
            .map(move |message| frames::incoming(message, engine.limits()));
        let session = Session::new(
            self.engine.clone(),
            outbox.clone(),
            peer,
            principal,
            attendance.clone(),
        );
        self.sessions.spawn(session.run(inbound));

        let stream = AttachStream {
            engine: self.engine.clone(),
            outbox: outbox.clone(),
            attendance,
        };
        let mut response = Response::new(stream);
        response.extensions_mut().insert(AttachOutbox(outbox));
        Ok(response)
    }
}

/// The frames and the end of one call, as tonic writes them.
pub(super) struct AttachStream {
    engine: Engine,
    outbox: Arc<Outbox>,
    /// Kept until what was not delivered is known.
    attendance: Option<Attendance>,
}

/// The answer to a process of a pool that opens a second call beside its first.
fn second_call(principal: &Principal) -> Status {
    let message = format!(
        "{principal} has a call open, and one is all it may have: give it one slot, and the pool \
         a larger size"
    );
    warn!(target: AUDIT, "refused: {message}");
    status::of_refusal(&Refusal::TooMany(message))
}

impl Stream for AttachStream {
    type Item = Result<relay::AttachResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.outbox.poll_next(cx);
        if next.is_pending()
            && let Some(missing) = self.outbox.missing()
        {
            self.engine.read_replay(self.outbox.clone(), missing);
        }
        next.map(|next| match next? {
            Ok(frame) => {
                if let Some(attendance) = &self.attendance {
                    match &frame {
                        Outgoing::Request { delivery, .. } => {
                            attendance.process().works_on(*delivery);
                        }
                        Outgoing::Drain(_) => attendance.process().tell_to_leave(),
                        Outgoing::Welcome(..)
                        | Outgoing::Replayed(_)
                        | Outgoing::Appended(_)
                        | Outgoing::Heartbeat => {}
                    }
                }
                Some(Ok(frames::outgoing(
                    frame,
                    self.engine.server_id(),
                    self.engine.limits(),
                )))
            }
            Err(end) => status::of_end(&end).map(Err),
        })
    }
}

impl Drop for AttachStream {
    fn drop(&mut self) {
        if let Some(undelivered) = self.outbox.abandon() {
            self.engine.undelivered(undelivered);
        }
    }
}
