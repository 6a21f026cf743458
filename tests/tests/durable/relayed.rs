//! What a newer worker writes into an entry: nothing of it is lost on its way to the disk and from
//! there to whoever reads.

use std::sync::Arc;
use std::time::Duration;

use harness_proto::relay::{self, attach_request, attach_response, watch_run_response};
use harness_proto::v1::{self, WatchRunRequest, entry};
use harness_server::Limits;
use harness_server::ids::RunId;
use harness_server::store::{Sqlite, Store};
use harness_tests::durable::{start, started};
use harness_tests::raw::{Embedded, RawSlot, SOON, full_hello, payload, within};
use prost::Message;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::client::Grpc;
use tonic::transport::Channel;

/// A worker over the messages of one who passes entries on, which are bytes there.
struct Slot {
    frames: mpsc::Sender<relay::AttachRequest>,
    inbound: Streaming<relay::AttachResponse>,
}

/// Calls an rpc with messages of the test's choosing.
async fn call<Q, A>(channel: &Channel, path: &'static str, asked: ReceiverStream<Q>) -> Streaming<A>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    within(SOON, grpc.ready()).await.expect("a connection");
    let codec = harness_proto::codec::RelayCodec::<Q, A>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    let opened = grpc.streaming(tonic::Request::new(asked), path, codec);
    within(SOON, opened)
        .await
        .expect("the call opens")
        .into_inner()
}

impl Slot {
    async fn attach(channel: &Channel, hello: &v1::Hello) -> Self {
        let (frames, asked) = mpsc::channel(16);
        let hello = relay::Hello::decode(&*hello.encode_to_vec()).expect("one encoding");
        let slot = Self {
            inbound: call(
                channel,
                "/harness.v1.WorkerService/Attach",
                ReceiverStream::new(asked),
            )
            .await,
            frames,
        };
        slot.send(attach_request::Frame::Hello(hello)).await;
        slot
    }

    async fn send(&self, frame: attach_request::Frame) {
        let frame = relay::AttachRequest { frame: Some(frame) };
        self.frames.send(frame).await.expect("the call is open");
    }

    async fn next(&mut self) -> attach_response::Frame {
        let told = within(SOON, self.inbound.message()).await;
        let told = told.expect("no end").expect("no OK");
        told.frame.expect("a known frame")
    }

    async fn request(&mut self) -> relay::Request {
        loop {
            if let attach_response::Frame::Request(request) = self.next().await {
                return request;
            }
        }
    }
}

/// A step of this version, and behind it what no reader of this version knows: a field in the entry
/// and one in the step itself.
fn newer() -> Vec<u8> {
    // Field 1000, text of three bytes.
    const UNKNOWN: [u8; 6] = [0xc2, 0x3e, 3, b'n', b'e', b'w'];
    let step = v1::Step {
        name: "first".to_owned(),
        key: "1".to_owned(),
        kind: v1::StepKind::Done.into(),
        outcome: Some(v1::Outcome {
            outcome: Some(v1::outcome::Outcome::Value(payload("1"))),
        }),
        idempotency_key: "k".to_owned(),
    };
    let mut inner = step.encode_to_vec();
    inner.extend(UNKNOWN);
    let known = entry::Kind::Step(step);
    let mut tagged = Vec::new();
    known.encode(&mut tagged);
    // The tag of the step, then its new length.
    let mut newer = vec![tagged[0]];
    prost::encode_length_delimiter(inner.len(), &mut newer).expect("room");
    newer.extend(inner);
    newer.extend(UNKNOWN);
    newer
}

/// The entries of a run by their number, as the bytes that come.
async fn watched(channel: &Channel, run_id: &str, seq: u64) -> bytes::Bytes {
    let (asks, asked) = mpsc::channel(1);
    let request = WatchRunRequest {
        run_id: run_id.to_owned(),
        from_seq: seq,
        ..WatchRunRequest::default()
    };
    asks.send(request).await.expect("room");
    drop(asks);
    let path = "/harness.v1.RunService/WatchRun";
    let mut told: Streaming<relay::WatchRunResponse> =
        call(channel, path, ReceiverStream::new(asked)).await;
    let first = within(SOON, told.message()).await.expect("no end");
    match first.expect("no OK").event {
        Some(watch_run_response::Event::Entry(told)) if told.seq == seq => told.entry,
        other => panic!("entry {seq} comes first: {other:?}"),
    }
}

#[tokio::test]
async fn a_field_that_only_a_newer_version_knows_goes_from_append_over_store_to_replay_and_watch() {
    let folder = TempDir::new().expect("a folder of its own");
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(folder.path()).expect("a store"));
    let limits = Limits {
        reattach_window: Duration::ZERO,
        ..Limits::default()
    };
    let harness = Embedded::storing(limits, Some(store.clone())).await;
    let channel = harness.connect().await;
    let worker = harness.connect().await;
    let mut slot = Slot::attach(&worker, &full_hello("echo")).await;
    let run = started(&channel, start("echo", "1")).await;
    let request = slot.request().await;
    let append = relay::Append {
        run_id: request.run_id.clone(),
        attempt: request.attempt,
        worker_seq: 1,
        entry: newer().into(),
    };
    slot.send(attach_request::Frame::Append(append)).await;
    loop {
        if let attach_response::Frame::Appended(_) = slot.next().await {
            break;
        }
    }
    // Behind run_started and attempt_started.
    const SEQ: u64 = 3;
    let run_id = RunId(run.run_id.parse().expect("an id"));
    let page = store.journal(run_id, SEQ, 1, 1024).expect("readable");
    assert_eq!(page.entries[0].content, newer(), "on disk");
    assert_eq!(watched(&channel, &run.run_id, SEQ).await, newer(), "live");
    drop(slot);
    drop(worker);

    let worker = harness.connect().await;
    let mut slot = Slot::attach(&worker, &full_hello("echo")).await;
    let request = slot.request().await;
    assert_eq!((request.attempt, request.replay_entries), (2, 1));
    let attach_response::Frame::Entry(replayed) = slot.next().await else {
        panic!("an entry follows the request")
    };
    assert_eq!(
        (replayed.seq, &*replayed.entry),
        (SEQ, &*newer()),
        "replayed"
    );
    drop(slot);
    // A reader of this version takes what it knows.
    let mut known = RawSlot::attach(harness.connect().await, full_hello("echo")).await;
    known.request().await;
    let harness_proto::v1::attach_response::Frame::Entry(told) = known.next().await else {
        panic!("an entry follows the request")
    };
    assert_eq!(harness_tests::durable::kinds(&[told]), ["step"]);
}
