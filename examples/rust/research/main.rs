//! A worker whose agent, `research`, is a language model with two tools.
//!
//! Without anything else a scripted model speaks, so that it needs no key. `--model
//! anthropic/claude-sonnet-4-5` or `--model openai/gpt-4.1` puts a real one in its place: the key
//! is read from the environment, nothing else changes.

mod agent;

use std::error::Error;

use worker_sdk::Worker;
use worker_sdk::agent_loop::{AgentLoop, AgentLoopBuilder, Anthropic, OpenAi};

use agent::{agent, scripted};

/// The model that `--model` names, or the scripted one.
fn model(arguments: &[String]) -> Result<AgentLoopBuilder, Box<dyn Error>> {
    let named = match arguments {
        [] => None,
        [flag, name] if flag == "--model" => name.split_once('/'),
        _ => return Err("usage: research [--model anthropic/NAME | openai/NAME]".into()),
    };
    match named {
        None if arguments.is_empty() => Ok(AgentLoop::builder(scripted())),
        Some(("anthropic", name)) => Ok(AgentLoop::builder(Anthropic::from_env(name)?)),
        Some(("openai", name)) => Ok(AgentLoop::builder(OpenAi::from_env(name)?)),
        Some(_) | None => Err("a model is anthropic/NAME or openai/NAME".into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let agent = agent(model(&arguments)?)?;
    let worker = Worker::builder(agent).name("research");
    worker
        .description("answers from a small library")
        .run()
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use worker_sdk::testing;

    use super::*;

    #[tokio::test]
    async fn it_reads_what_it_finds_and_says_when_there_is_nothing() {
        let agent = agent(model(&[]).unwrap()).unwrap();
        let answer = testing::run(&agent, "Which rivers are long?".into())
            .await
            .unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.turns),
            ("No page holds that.", 2)
        );
        let answer = testing::run(&agent, "What is in Mediterranean?".into())
            .await
            .unwrap();
        assert_eq!(answer.text, agent::LIBRARY[0].1);
        assert_eq!((answer.turns, answer.tool_calls), (3, 2));
    }

    #[test]
    fn a_model_that_is_none_is_refused() {
        for arguments in [
            vec!["--model", "x"],
            vec!["--model"],
            vec!["--model", "other/x"],
        ] {
            let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
            assert!(model(&arguments).is_err());
        }
    }
}
