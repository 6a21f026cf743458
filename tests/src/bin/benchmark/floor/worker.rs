//! The bare worker: a stream a slot on one connection, each says hello, is welcomed and echoes what it is asked or, told to
//! hang, says when its stream ended under a request.

use harness_proto::v1;
use harness_proto::v1::attach_request::Frame;
use harness_proto::v1::worker_service_client::WorkerServiceClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::clock;

/// Attaches so many slots and works until the server is gone.
pub(crate) async fn run(address: String, slots: usize, connections: usize, hang: bool) {
    let mut running = JoinSet::new();
    for _ in 0..connections {
        let channel = super::client::connect(&address).await;
        for _ in 0..slots {
            running.spawn(slot(WorkerServiceClient::new(channel.clone()), hang));
        }
    }
    crate::tell("attached");
    running.join_all().await;
}

async fn slot(mut client: WorkerServiceClient<Channel>, hang: bool) {
    while attached(&mut client, hang).await {}
}

/// One stream, until it ends; whether another can be opened.
async fn attached(client: &mut WorkerServiceClient<Channel>, hang: bool) -> bool {
    let (replies, outbound) = mpsc::channel(1);
    drop(replies.try_send(hello()));
    let Ok(response) = client.attach(ReceiverStream::new(outbound)).await else {
        return false;
    };
    let mut inbound = response.into_inner();
    let mut working = false;
    loop {
        match inbound.message().await {
            Ok(Some(message)) => {
                let Some(v1::attach_response::Frame::Request(request)) = message.frame else {
                    continue;
                };
                working = hang;
                if hang {
                    crate::tell("started");
                    continue;
                }
                let reply = v1::Reply {
                    attempt: request.attempt,
                    outcome: request.payload.map(v1::reply::Outcome::Value),
                    ..v1::Reply::default()
                };
                let frame = Some(Frame::Reply(reply));
                if replies.send(v1::AttachRequest { frame }).await.is_err() {
                    return false;
                }
            }
            Ok(None) | Err(_) => {
                if working {
                    crate::tell(&format!("stopped {}", clock::nanos()));
                }
                return working;
            }
        }
    }
}

/// As the harness's worker says it, which has these fields.
fn hello() -> v1::AttachRequest {
    let hello = v1::Hello {
        protocol_version: 1,
        worker: Some(v1::WorkerInfo {
            worker_id: uuid::Uuid::nil().to_string(),
            pid: std::process::id(),
            host: "localhost".to_owned(),
            language: "rust".to_owned(),
            sdk_version: "worker-sdk/0.1.0".to_owned(),
            ..v1::WorkerInfo::default()
        }),
        agent: Some(v1::AgentInfo {
            name: "echo".to_owned(),
            ..v1::AgentInfo::default()
        }),
        namespace: "default".to_owned(),
        heartbeats: true,
        max_receive_bytes: 4 << 20,
        ..v1::Hello::default()
    };
    v1::AttachRequest {
        frame: Some(Frame::Hello(hello)),
    }
}
