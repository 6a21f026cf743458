//! What operators see over a real socket.

use std::time::Duration;

use harness_proto::v1::{
    GetServerInfoRequest, ListAgentsRequest, ListWorkersRequest, SlotState, WorkerInfo,
};
use harness_tests::raw::{Embedded, RawSlot, SOON, admin, asking, full_hello, hello};

#[tokio::test]
async fn agents_and_workers_are_listed_with_their_slots() {
    let harness = Embedded::start().await;
    let mut worker = full_hello("beta");
    worker.worker = Some(WorkerInfo {
        pid: 42,
        language: "rust".into(),
        ..worker.worker.unwrap_or_default()
    });
    let mut busy = RawSlot::attach(harness.connect().await, worker.clone()).await;
    let asked = asking(&harness, "beta", SOON).await;
    let request = busy.request().await;
    let _idle = RawSlot::attach(harness.connect().await, worker).await;
    let _other = RawSlot::attach(harness.connect().await, hello("alpha")).await;

    let mut admin = admin(&harness.connect().await);
    let agents = admin
        .list_agents(ListAgentsRequest::default())
        .await
        .expect("listed");
    let agents = &agents.get_ref().agents;
    let names: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["alpha", "beta"]);
    assert_eq!(
        (
            agents[1].slots_ready,
            agents[1].slots_busy,
            agents[1].workers
        ),
        (1, 1, 1)
    );

    let only_beta = ListWorkersRequest {
        agent: "beta".into(),
        ..ListWorkersRequest::default()
    };
    let workers = admin.list_workers(only_beta).await.expect("listed");
    let [worker] = &workers.get_ref().workers[..] else {
        panic!("one worker: {workers:?}")
    };
    assert_eq!(worker.info.as_ref().map(|info| info.pid), Some(42));
    assert!(worker.heartbeats && worker.peer.starts_with("127.0.0.1:"));
    let states: Vec<SlotState> = worker.slots.iter().map(|slot| slot.state()).collect();
    assert_eq!(states, [SlotState::Busy, SlotState::Ready]);
    assert_eq!(
        (&worker.slots[0].run_id, worker.slots[0].attempt),
        (&request.run_id, 1)
    );

    busy.reply(&request, "1").await;
    assert!(asked.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn the_server_says_who_it_is_and_what_it_keeps_to() {
    let harness = Embedded::start().await;
    let mut admin = admin(&harness.connect().await);
    let info = admin
        .get_server_info(GetServerInfoRequest {})
        .await
        .expect("told")
        .into_inner();
    assert_eq!(
        (info.protocol_versions, info.listeners),
        (vec![1], vec![harness.address.clone()])
    );
    assert!(!info.shutting_down && info.server_id.len() == 36);
    let limits = info.limits.expect("limits");
    assert_eq!(limits.payload_bytes, (4 << 20) - (64 << 10));
    let timeout: Duration = limits
        .default_timeout
        .expect("a timeout")
        .try_into()
        .expect("a positive duration");
    assert_eq!(timeout, Duration::from_secs(60));
}
