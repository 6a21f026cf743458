//! A bare worker that comes back to a request whose call broke.

use harness_proto::v1::{Hello, Request, Resume, Resumed, attach_request, attach_response, hello};
use tonic::Status;
use tonic::transport::Channel;

use super::{RawSlot, SOON, within};

/// The hello of a worker whose call broke under a request.
#[must_use]
pub fn resuming(hello: Hello, request: &Request) -> Hello {
    Hello {
        previous: Some(hello::Previous::Resume(Resume {
            run_id: request.run_id.clone(),
            attempt: request.attempt,
            lease: request.lease.clone(),
        })),
        ..hello
    }
}

impl RawSlot {
    /// Opens a call that goes on with a request; gives where the harness stands with it.
    pub async fn resume(channel: Channel, hello: Hello, request: &Request) -> (Self, Resumed) {
        let mut slot = Self::open(channel).await;
        let hello = resuming(hello, request);
        slot.send(attach_request::Frame::Hello(hello)).await;
        match slot.next().await {
            attach_response::Frame::Welcome(welcome) => (slot, welcome.resume.expect("it resumes")),
            other => panic!("expected welcome, got {other:?}"),
        }
    }

    /// The same of a request with which there is nothing to go on; gives the end of the call.
    pub async fn not_resumed(channel: Channel, hello: Hello, request: &Request) -> Status {
        let mut slot = Self::open(channel).await;
        let hello = resuming(hello, request);
        slot.send(attach_request::Frame::Hello(hello)).await;
        let first = within(SOON, slot.inbound.message()).await;
        first.expect_err("an end and no welcome")
    }
}
