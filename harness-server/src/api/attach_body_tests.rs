//! What counts as delivered when a call is over.

use std::task::Waker;

use super::*;
use crate::engine::put_request;
use crate::ids::SlotId;
use crate::slot::End;

/// What waits in an outbox, each frame as a byte.
struct Written(Arc<Outbox>);

impl Body for Written {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(self.0.poll_next(cx));
        Poll::Ready(next.map(|_| Ok(Frame::data(Bytes::from_static(b"f")))))
    }
}

/// A call whose welcome has left.
fn welcomed() -> (AttachBody, Arc<Outbox>) {
    let outbox = Arc::new(Outbox::default());
    let inner = tonic::body::Body::new(Written(outbox.clone()));
    let mut body = AttachBody::new(inner, outbox.clone());
    outbox.welcome(SlotId(1), None);
    drop(frame(&mut body));
    (body, outbox)
}

/// The next frame, as the transport holds it.
fn frame(body: &mut AttachBody) -> Bytes {
    match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => frame.into_data().expect("data"),
        other => panic!("no frame: {other:?}"),
    }
}

#[test]
fn a_request_that_has_left_is_delivered_though_no_frame_came_after_it() {
    let (mut body, outbox) = welcomed();
    put_request(&outbox);
    drop(frame(&mut body));
    drop(body);
    assert_eq!(outbox.abandon(), None);
}

#[test]
fn a_request_that_the_transport_still_holds_when_the_call_is_over_is_not() {
    let (mut body, outbox) = welcomed();
    let (to, _) = put_request(&outbox);
    let held = frame(&mut body);
    drop(body);
    assert_eq!(outbox.abandon(), Some(to));
    drop(held);
}

#[tokio::test]
async fn a_request_that_held_up_the_end_of_its_call_is_not_though_the_transport_drops_it() {
    let (mut body, outbox) = welcomed();
    let (to, _) = put_request(&outbox);
    let held = frame(&mut body);
    outbox.end(End::Leaving);
    let context = &mut Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut body).poll_frame(context).is_pending());
    drop(held);
    drop(body);
    assert_eq!(outbox.abandon(), Some(to));
}

#[test]
fn a_request_that_was_never_handed_over_is_not() {
    let (body, outbox) = welcomed();
    let (to, _) = put_request(&outbox);
    drop(body);
    assert_eq!(outbox.abandon(), Some(to));
}
