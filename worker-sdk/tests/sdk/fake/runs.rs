//! The fake's `RunService`.

use harness_proto::v1;
use harness_proto::v1::run_service_server::RunService;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::within;

/// An ask, for the test to answer. The sender is closed when the caller hung up.
pub(crate) struct Asked {
    pub(crate) request: v1::AskRequest,
    pub(crate) grpc_timeout: Option<String>,
    pub(crate) answer: oneshot::Sender<Result<v1::AskResponse, Status>>,
}

/// Another call, for the test to answer.
pub(crate) enum Told {
    Stream(
        v1::AskStreamRequest,
        mpsc::Sender<Result<v1::AskStreamResponse, Status>>,
    ),
    Many(ManyAsked),
    Get(v1::GetRunRequest, oneshot::Sender<v1::Run>),
    Cancel(v1::CancelRunRequest, oneshot::Sender<v1::Run>),
    Watch(
        v1::WatchRunRequest,
        mpsc::Sender<Result<v1::WatchRunResponse, Status>>,
    ),
}

/// One AskMany call, from the harness's side.
pub(crate) struct ManyAsked {
    frames: Streaming<v1::AskManyRequest>,
    pub(crate) answers: mpsc::Sender<Result<v1::AskManyResponse, Status>>,
}

impl ManyAsked {
    /// The next frame; None after the half-close.
    pub(crate) async fn frame(&mut self) -> Option<v1::ask_many_request::Frame> {
        let frame = within("frame of many", self.frames.message()).await;
        frame.unwrap().map(|frame| frame.frame.unwrap())
    }

    /// The next ask.
    pub(crate) async fn ask(&mut self) -> v1::TaggedAsk {
        match self.frame().await {
            Some(v1::ask_many_request::Frame::Ask(ask)) => ask,
            other => panic!("an ask, not {other:?}"),
        }
    }

    pub(crate) async fn send(&self, frame: v1::ask_many_response::Frame) {
        let frame = v1::AskManyResponse { frame: Some(frame) };
        self.answers.send(Ok(frame)).await.unwrap();
    }

    pub(crate) async fn window(&self, max_open: u32) {
        let window = v1::Window { max_open };
        self.send(v1::ask_many_response::Frame::Window(window))
            .await;
    }

    pub(crate) async fn answer(&self, tag: u64, outcome: v1::outcome::Outcome) {
        self.send(v1::ask_many_response::Frame::Answer(v1::Answer {
            tag,
            run_id: format!("run {tag}"),
            attempt: 1,
            outcome: Some(v1::Outcome {
                outcome: Some(outcome),
            }),
        }))
        .await;
    }
}

pub(super) struct Asking {
    pub(super) asked: mpsc::Sender<Asked>,
    pub(super) tell: mpsc::Sender<Told>,
}

impl Asking {
    async fn tell(&self, told: Told) {
        // A test that has ended answers nobody.
        let _ = self.tell.send(told).await;
    }
}

#[tonic::async_trait]
impl RunService for Asking {
    type AskStreamStream = ReceiverStream<Result<v1::AskStreamResponse, Status>>;
    type AskManyStream = ReceiverStream<Result<v1::AskManyResponse, Status>>;
    type WatchRunStream = ReceiverStream<Result<v1::WatchRunResponse, Status>>;

    async fn ask(
        &self,
        request: Request<v1::AskRequest>,
    ) -> Result<Response<v1::AskResponse>, Status> {
        let header = request.metadata().get("grpc-timeout");
        let grpc_timeout = header.map(|value| value.to_str().unwrap().to_owned());
        let (answer, answered) = oneshot::channel();
        let asked = Asked {
            request: request.into_inner(),
            grpc_timeout,
            answer,
        };
        self.asked.send(asked).await.unwrap();
        answered.await.unwrap().map(Response::new)
    }

    async fn ask_stream(
        &self,
        request: Request<v1::AskStreamRequest>,
    ) -> Result<Response<Self::AskStreamStream>, Status> {
        let (answers, stream) = mpsc::channel(1);
        self.tell(Told::Stream(request.into_inner(), answers)).await;
        let mut response = Response::new(ReceiverStream::new(stream));
        let header = "the run".parse().unwrap();
        response.metadata_mut().insert("harness-run-id", header);
        Ok(response)
    }

    async fn ask_many(
        &self,
        request: Request<Streaming<v1::AskManyRequest>>,
    ) -> Result<Response<Self::AskManyStream>, Status> {
        let (answers, stream) = mpsc::channel(100);
        let frames = request.into_inner();
        self.tell(Told::Many(ManyAsked { frames, answers })).await;
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn get_run(
        &self,
        request: Request<v1::GetRunRequest>,
    ) -> Result<Response<v1::GetRunResponse>, Status> {
        let (answer, answered) = oneshot::channel();
        self.tell(Told::Get(request.into_inner(), answer)).await;
        let run = answered.await.ok();
        Ok(Response::new(v1::GetRunResponse { run }))
    }

    async fn cancel_run(
        &self,
        request: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        let (answer, answered) = oneshot::channel();
        self.tell(Told::Cancel(request.into_inner(), answer)).await;
        let run = answered.await.ok();
        Ok(Response::new(v1::CancelRunResponse { run }))
    }

    async fn watch_run(
        &self,
        request: Request<v1::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let (answers, stream) = mpsc::channel(1);
        self.tell(Told::Watch(request.into_inner(), answers)).await;
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn start_run(
        &self,
        _: Request<v1::StartRunRequest>,
    ) -> Result<Response<v1::StartRunResponse>, Status> {
        Err(Status::unimplemented("not in the fake"))
    }

    async fn list_runs(
        &self,
        _: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        Err(Status::unimplemented("not in the fake"))
    }
}
