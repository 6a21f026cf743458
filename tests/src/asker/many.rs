//! Many asks on one call.

use std::time::Duration;

use harness_proto::v1::{AskManyRequest, TaggedAsk, ask_many_request, ask_many_response, outcome};
use serde_json::Value;

use super::{Asker, GRACE};
use crate::raw;

impl Asker {
    /// Asks all on one AskMany call, each under its tag and with this metadata, and gives the tag,
    /// the run and the JSON of each answer as they came.
    ///
    /// # Panics
    /// When one is answered with an error, or the call goes on for a second past the timeout.
    #[track_caller]
    pub fn many(
        &self,
        tagged: &[(u64, Value)],
        metadata: &[(&str, &str)],
        timeout: Duration,
    ) -> Vec<(u64, String, Value)> {
        let frames: Vec<AskManyRequest> = tagged
            .iter()
            .map(|(tag, payload)| {
                let mut request = self.request(&payload.to_string(), timeout);
                let options = request.options.get_or_insert_default();
                for (key, value) in metadata {
                    options.metadata.insert((*key).into(), (*value).into());
                }
                let ask = TaggedAsk {
                    tag: *tag,
                    agent: request.agent,
                    payload: request.payload,
                    options: request.options,
                };
                AskManyRequest {
                    frame: Some(ask_many_request::Frame::Ask(ask)),
                }
            })
            .collect();
        let mut client = raw::runs(&self.channel);
        let asked = async {
            let call = client.ask_many(tokio_stream::iter(frames)).await;
            let mut answers = call.expect("the call opens").into_inner();
            let mut told = Vec::new();
            while let Some(message) = answers.message().await.expect("the call ends OK") {
                match message.frame.expect("a known frame") {
                    ask_many_response::Frame::Window(_) => {}
                    ask_many_response::Frame::Answer(answer) => {
                        let outcome = answer.outcome.and_then(|outcome| outcome.outcome);
                        let Some(outcome::Outcome::Value(value)) = outcome else {
                            panic!("tag {}: {outcome:?}", answer.tag)
                        };
                        let value = serde_json::from_slice(&value.data).expect("JSON");
                        told.push((answer.tag, answer.run_id, value));
                    }
                }
            }
            told
        };
        let bounded = async { tokio::time::timeout(timeout + GRACE, asked).await };
        self.runtime.block_on(bounded).expect("answered in time")
    }
}
