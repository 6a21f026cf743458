//! A worker whose agent, `research`, is a language model with two tools.
//!
//! Without anything else a scripted model speaks, so that it needs no key. `--model
//! anthropic/claude-sonnet-4-5` or `--model openai/gpt-4.1` puts a real one in its place: the key
//! is read from the environment, nothing else changes.

use std::error::Error;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use worker_sdk::Worker;
use worker_sdk::agent_loop::{
    AgentLoop, AgentLoopBuilder, Anthropic, Class, Line, Message, OpenAi, Request, ScriptedModel,
    Tool, ToolContext, ToolError,
};

/// What there is to read: title and text.
const LIBRARY: [(&str, &str); 3] = [
    (
        "Nile",
        "The Nile is about 6,650 km long and flows north into the Mediterranean Sea.",
    ),
    (
        "Amazon",
        "The Amazon carries more water than any other river and is about 6,400 km long.",
    ),
    (
        "Alps",
        "The Alps are a mountain range in Europe; Mont Blanc is 4,806 m high.",
    ),
];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Search {
    /// One word that the pages should hold.
    word: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Read {
    /// The title of a page, as search gave it.
    title: String,
}

#[derive(Serialize)]
struct Found {
    titles: Vec<&'static str>,
}

async fn search(_: ToolContext, arguments: Search) -> Result<Found, ToolError> {
    let word = arguments.word.to_lowercase();
    let hits = LIBRARY
        .iter()
        .filter(|(_, text)| text.to_lowercase().contains(&word));
    Ok(Found {
        titles: hits.map(|(title, _)| *title).collect(),
    })
}

async fn read(_: ToolContext, arguments: Read) -> Result<&'static str, ToolError> {
    let page = LIBRARY.iter().find(|(title, _)| *title == arguments.title);
    // The model reads this and does better.
    page.map(|(_, text)| *text)
        .ok_or_else(|| ToolError::permanent("there is no such page"))
}

fn agent(builder: AgentLoopBuilder) -> Result<AgentLoop, Box<dyn Error>> {
    let search = Tool::new(
        "search",
        "Gives the titles of pages that hold a word.",
        search,
    );
    let read = Tool::new("read", "Gives the text of a page.", read);
    Ok(builder
        .system("Answer from the pages of the library alone, and name them.")
        .tool(search.class(Class::ReadOnly).parallel_safe())
        .tool(read.class(Class::ReadOnly).parallel_safe())
        .build()?)
}

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

/// Looks up the question's longest word, reads what it finds and puts that together.
fn scripted() -> ScriptedModel {
    ScriptedModel::by(|request| match request.turn {
        1 => {
            let question = first_text(request);
            let words = question.split(|c: char| !c.is_alphanumeric());
            let word = words.max_by_key(|word| word.len()).unwrap_or_default();
            Some(Line::text("Let me look.").and(Line::call("search", json!({"word": word}))))
        }
        2 => {
            #[derive(Deserialize)]
            struct Hits {
                titles: Vec<String>,
            }
            let hits = serde_json::from_str(results(request).first()?);
            let Hits { titles } = hits.unwrap_or(Hits { titles: Vec::new() });
            let reading = titles
                .iter()
                .map(|title| Line::call("read", json!({"title": title})));
            Some(
                reading
                    .reduce(Line::and)
                    .unwrap_or_else(|| Line::text("No page holds that.")),
            )
        }
        _ => Some(Line::text(results(request).join(" "))),
    })
}

fn first_text(request: &Request) -> &str {
    match request.messages.first().map(|message| &**message) {
        Some(Message::User { text }) => text,
        _ => "",
    }
}

/// What the tools answered last.
fn results(request: &Request) -> Vec<&str> {
    match request.messages.last().map(|message| &**message) {
        Some(Message::Tools { results }) => results.iter().map(|result| &*result.text).collect(),
        _ => Vec::new(),
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
        assert_eq!(answer.text, LIBRARY[0].1);
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
