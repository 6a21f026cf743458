//! A worker whose agent, `count-words`, has typed requests and replies.
//!
//! Their schemas are derived from the two types. The harness holds every request and every reply
//! against them, so this code never sees a request that is not a [`Question`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use worker_sdk::{Agent, AgentError, Context, Error, Worker};

/// What is asked.
#[derive(Debug, Deserialize, JsonSchema)]
struct Question {
    /// The text whose words are counted.
    text: String,
}

/// What is answered.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Answer {
    words: usize,
}

struct CountWords;

impl Agent for CountWords {
    type Request = Question;
    type Reply = Answer;

    async fn reply(&self, ctx: Context, question: Question) -> Result<Answer, AgentError> {
        let words = question.text.split_whitespace().count();
        if words == 0 {
            // The caller gets AGENT_ERROR with this type and text.
            return Err(AgentError::new("NoWords", "the text has no words"));
        }
        ctx.progress(1.0, "all words counted").await?;
        Ok(Answer { words })
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Without this a standard error that nobody reads any more is a panic.
        .log_internal_errors(false)
        .init();
    Worker::builder(CountWords)
        .name("count-words")
        .description("counts the words of a text")
        .run()
        .await
}

#[cfg(test)]
mod tests {
    use worker_sdk::testing;

    use super::*;

    #[tokio::test]
    async fn it_counts_words_and_refuses_a_text_without_any() {
        let question = |text: &str| Question {
            text: text.to_owned(),
        };
        let (ctx, record) = testing::context().build();
        let answer = CountWords.reply(ctx.clone(), question("one  two")).await;
        assert_eq!(answer.unwrap(), Answer { words: 2 });
        assert_eq!(record.progress().len(), 1);
        let error = CountWords.reply(ctx, question(" ")).await.unwrap_err();
        assert_eq!(error.error_type(), "NoWords");
    }
}
