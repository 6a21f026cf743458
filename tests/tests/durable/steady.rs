//! A worker over the bare wire that does steps and is never put off: it resumes what it has, sends
//! again what was not acknowledged, and writes down what it does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use harness_proto::v1::worker_service_client::WorkerServiceClient;
use harness_proto::v1::{
    AttachRequest, Hello, Request, StepKind, WorkerHeartbeat, attach_request, attach_response,
    entry, reply,
};
use harness_tests::durable::{kind_of, step};
use harness_tests::raw::{full_hello, reason, resuming};
use harness_tests::step_log::{AGENT, STEPS, StepLog, What};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

/// One worker with one slot.
pub(super) struct Worker {
    address: String,
    hello: Hello,
    /// Whether it forgets all it has when its call breaks, as a process does that dies.
    forgets: bool,
    log: Arc<StepLog>,
}

/// What it has in hand.
struct Work {
    request: Request,
    /// Entries of the journal that are still to come with the request.
    replayed_left: u32,
    done: BTreeSet<usize>,
    /// The frame that is not acknowledged, its number and its step.
    unacked: Option<(u64, attach_request::Frame, Option<usize>)>,
    next_seq: u64,
}

impl Worker {
    pub(super) fn new(address: String, forgets: bool, log: Arc<StepLog>) -> Self {
        Self {
            address,
            hello: full_hello(AGENT),
            forgets,
            log,
        }
    }

    async fn attach(
        &self,
        hello: Hello,
    ) -> Option<(
        mpsc::Sender<AttachRequest>,
        Streaming<harness_proto::v1::AttachResponse>,
    )> {
        let channel = Endpoint::from_shared(format!("http://{}", self.address))
            .expect("a valid address")
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            .connect()
            .await
            .ok()?;
        let (frames, outbound) = mpsc::channel(64);
        let mut client = WorkerServiceClient::new(channel);
        send(&frames, attach_request::Frame::Hello(hello)).await;
        let call = client.attach(ReceiverStream::new(outbound)).await.ok()?;
        Some((frames, call.into_inner()))
    }
}

async fn send(frames: &mpsc::Sender<AttachRequest>, frame: attach_request::Frame) {
    // A call that has just ended takes nothing; its end is read.
    drop(frames.send(AttachRequest { frame: Some(frame) }).await);
}

/// Works until it is told to stop.
pub(super) async fn work(mut worker: Worker, stop: CancellationToken) {
    let mut held: Option<Work> = None;
    while !stop.is_cancelled() {
        let hello = match &held {
            Some(work) => resuming(worker.hello.clone(), &work.request),
            None => worker.hello.clone(),
        };
        let Some((frames, mut inbound)) = worker.attach(hello).await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let ended = tokio::select! {
            ended = serve(&worker, &frames, &mut inbound, &mut held) => ended,
            () = stop.cancelled() => return,
        };
        if is_stop(ended.as_ref().err()) {
            held = None;
        } else if worker.forgets {
            held = None;
            worker.hello = full_hello(AGENT);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the end of a call means that its work is over: one of ours that is not UNAVAILABLE.
fn is_stop(status: Option<&Status>) -> bool {
    status.is_some_and(|status| {
        let ours = !status.details().is_empty();
        assert!(
            !ours || reason(status) != "PROTOCOL_VIOLATION" && reason(status) != "WRONG_ATTEMPT",
            "{status:?}"
        );
        ours && status.code() != tonic::Code::Unavailable
    })
}

/// One call, until its end.
async fn serve(
    worker: &Worker,
    frames: &mpsc::Sender<AttachRequest>,
    inbound: &mut Streaming<harness_proto::v1::AttachResponse>,
    held: &mut Option<Work>,
) -> Result<(), Status> {
    let mut beats = tokio::time::interval(Duration::from_millis(250));
    let mut welcomed = false;
    loop {
        let message = tokio::select! {
            message = inbound.message() => message?,
            // Nothing comes before the welcome, and what is in hand may be over with it.
            _ = beats.tick(), if welcomed => {
                let named = held.as_ref().map(|work| &work.request);
                let beat = WorkerHeartbeat {
                    run_id: named.map(|it| it.run_id.clone()).unwrap_or_default(),
                    attempt: named.map_or(0, |it| it.attempt),
                };
                send(frames, attach_request::Frame::Heartbeat(beat)).await;
                continue;
            }
        };
        let Some(frame) = message.and_then(|message| message.frame) else {
            return Ok(());
        };
        match frame {
            attach_response::Frame::Welcome(welcome) => {
                welcomed = true;
                if let (Some(resumed), true) = (welcome.resume, held.is_some()) {
                    acknowledged(worker, held, resumed.last_worker_seq, frames).await;
                    if let Some(work) = held
                        && let Some((_, frame, _)) = &work.unacked
                    {
                        send(frames, frame.clone()).await;
                    }
                } else {
                    *held = None;
                }
            }
            attach_response::Frame::Request(request) => {
                let mut work = Work {
                    replayed_left: request.replay_entries,
                    request,
                    done: BTreeSet::new(),
                    unacked: None,
                    next_seq: 1,
                };
                if work.replayed_left == 0 {
                    go_on(worker, &mut work, frames).await;
                }
                *held = Some(work);
            }
            attach_response::Frame::Entry(told) => {
                let work = held.as_mut().expect("an entry follows a request");
                let Some(entry::Kind::Step(step)) = kind_of(&told) else {
                    panic!("only steps go again, not {told:?}")
                };
                // A step that another worker began and did not finish is still to be done.
                if step.kind() == StepKind::Done {
                    work.done.insert(step.name.parse().expect("a number"));
                }
                work.replayed_left -= 1;
                if work.replayed_left == 0 {
                    go_on(worker, work, frames).await;
                }
            }
            attach_response::Frame::Appended(appended) => {
                acknowledged(worker, held, appended.worker_seq, frames).await;
            }
            attach_response::Frame::Heartbeat(_) | attach_response::Frame::Drain(_) => {}
        }
    }
}

/// Everything up to a number is on disk.
async fn acknowledged(
    worker: &Worker,
    held: &mut Option<Work>,
    seq: u64,
    frames: &mpsc::Sender<AttachRequest>,
) {
    let Some(work) = held else {
        return;
    };
    match work.unacked.take() {
        Some((number, _, Some(at))) if number <= seq => {
            let Request {
                run_id, attempt, ..
            } = &work.request;
            worker.log.put(What::Recorded, run_id, *attempt, at);
            work.done.insert(at);
            go_on(worker, work, frames).await;
        }
        // Its reply: it is free.
        Some((number, _, None)) if number <= seq => *held = None,
        unacked => work.unacked = unacked,
    }
}

/// Does the next step, or answers.
async fn go_on(worker: &Worker, work: &mut Work, frames: &mpsc::Sender<AttachRequest>) {
    let request = &work.request;
    let seq = work.next_seq;
    work.next_seq += 1;
    let (frame, at) = match (0..STEPS).find(|at| !work.done.contains(at)) {
        Some(at) => {
            let Request {
                run_id, attempt, ..
            } = request;
            worker.log.put(What::Ran, run_id, *attempt, at);
            (step(request, seq, &at.to_string(), "1"), Some(at))
        }
        None => {
            let reply = harness_proto::v1::Reply {
                run_id: request.run_id.clone(),
                attempt: request.attempt,
                worker_seq: seq,
                outcome: Some(reply::Outcome::Value(
                    request.payload.clone().unwrap_or_default(),
                )),
            };
            (attach_request::Frame::Reply(reply), None)
        }
    };
    work.unacked = Some((seq, frame.clone(), at));
    send(frames, frame).await;
}
