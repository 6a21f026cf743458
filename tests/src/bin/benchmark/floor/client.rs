//! The bare client: a closed loop of asks, as `harness bench` makes one, over generated stubs.

use std::time::{Duration, Instant};

use harness_proto::v1;
use harness_proto::v1::ask_many_request::Frame;
use harness_proto::v1::run_service_client::RunServiceClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::load::{Load, Told};

/// Not counted, as `harness bench` has it.
const WARM_UP: Duration = Duration::from_millis(500);

/// Connects to the floor's server.
pub(crate) async fn connect(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}"))
        .expect("an address")
        .connect()
        .await
        .expect("the floor's server must be there")
}

/// Runs the load and prints what `harness bench --json` prints.
pub(crate) async fn run(address: String, load: Load) {
    let begin = Instant::now() + WARM_UP;
    let end = begin + load.seconds;
    let mut askers = JoinSet::new();
    for at in 0..load.connections {
        let inflight =
            load.inflight / load.connections + usize::from(at < load.inflight % load.connections);
        let client = RunServiceClient::new(connect(&address).await);
        if load.many {
            askers.spawn(many(client, load.bytes, inflight, begin, end));
            continue;
        }
        for _ in 0..inflight {
            askers.spawn(unary(client.clone(), load.bytes, begin, end));
        }
    }
    let latencies = askers.join_all().await.into_iter().flatten().collect();
    crate::print(&Told::of(latencies, load.seconds).to_json());
}

fn payload(bytes: usize) -> v1::Payload {
    v1::Payload {
        content_type: "application/json".to_owned(),
        data: format!("\"{}\"", "x".repeat(bytes - 2)).into(),
    }
}

async fn unary(
    mut client: RunServiceClient<Channel>,
    bytes: usize,
    begin: Instant,
    end: Instant,
) -> Vec<Duration> {
    let request = v1::AskRequest {
        agent: "echo".to_owned(),
        payload: Some(payload(bytes)),
        options: None,
    };
    let mut latencies = Vec::new();
    loop {
        let asked = Instant::now();
        if asked >= end {
            return latencies;
        }
        client.ask(request.clone()).await.expect("an answer");
        let answered = Instant::now();
        if answered >= begin && answered < end {
            latencies.push(answered - asked);
        }
    }
}

async fn many(
    mut client: RunServiceClient<Channel>,
    bytes: usize,
    inflight: usize,
    begin: Instant,
    end: Instant,
) -> Vec<Duration> {
    let (asks, outbound) = mpsc::channel(inflight);
    let ask = |tag| v1::AskManyRequest {
        frame: Some(Frame::Ask(v1::TaggedAsk {
            tag,
            agent: "echo".to_owned(),
            payload: Some(payload(bytes)),
            options: None,
        })),
    };
    let mut asked = vec![Instant::now(); inflight];
    for tag in 0..inflight {
        asks.send(ask(tag as u64)).await.expect("an open call");
    }
    let response = client.ask_many(ReceiverStream::new(outbound)).await;
    let mut inbound = response.expect("an open call").into_inner();
    let mut latencies = Vec::new();
    loop {
        let message = inbound.message().await.expect("an open call");
        let answered = Instant::now();
        if answered >= end {
            return latencies;
        }
        let Some(v1::ask_many_response::Frame::Answer(answer)) = message.and_then(|m| m.frame)
        else {
            continue;
        };
        let at = &mut asked[answer.tag as usize];
        if answered >= begin {
            latencies.push(answered - *at);
        }
        *at = answered;
        asks.send(ask(answer.tag)).await.expect("an open call");
    }
}
