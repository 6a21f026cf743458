//! An agent that is a language model with two tools, and the script that speaks for the model until
//! there is a real one. It needs no key; `harness demo` shows this very file at work.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use worker_sdk::agent_loop::{
    AgentLoop, AgentLoopBuilder, Class, Line, Message, Request, ScriptedModel, Tool, ToolContext,
    ToolError, ToolboxError,
};

/// What there is to read: title and text.
pub(super) const LIBRARY: [(&str, &str); 3] = [
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

/// The agent around a model.
pub(super) fn agent(builder: AgentLoopBuilder) -> Result<AgentLoop, ToolboxError> {
    let search = Tool::new(
        "search",
        "Gives the titles of pages that hold a word.",
        search,
    );
    let read = Tool::new("read", "Gives the text of a page.", read);
    builder
        .system("Answer from the pages of the library alone, and name them.")
        .tool(search.class(Class::ReadOnly).parallel_safe())
        .tool(read.class(Class::ReadOnly).parallel_safe())
        .build()
}

/// Looks up the question's longest word, reads what it finds and puts that together.
pub(super) fn scripted() -> ScriptedModel {
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
