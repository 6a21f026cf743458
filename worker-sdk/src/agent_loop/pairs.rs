//! Every call of a conversation has exactly one result.
//!
//! Owns the check that is made before every model call and the repair: a call without a result is
//! answered, a result without a call is dropped, ids that are missing, empty or stand twice are
//! made. The same conversation is always repaired in the same way. Pure.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use super::message::{Assistant, Block, Call, CallResult, Message};

/// What a call is answered whose work was interrupted.
pub(crate) const INTERRUPTED: &str = "interrupted before a result was produced";

/// A longer id is no id: it would be the key of a step of the journal.
const ID_BYTES_MAX: usize = 256;

/// An id nothing in `taken` has, for a call whose own cannot be used. `place` is where the call
/// stands, so that the same one always gets the same id.
pub(crate) fn fresh_id(id: &str, place: (usize, usize), taken: &mut BTreeSet<String>) -> String {
    let usable = !id.is_empty() && id.len() <= ID_BYTES_MAX && !taken.contains(id);
    let mut made = if usable {
        id.to_owned()
    } else {
        format!("call_{}_{}", place.0, place.1)
    };
    while taken.contains(&made) {
        made.push('_');
    }
    taken.insert(made.clone());
    made
}

/// Whether every call has an id of its own and is answered once, by the message right behind it,
/// in order.
pub(crate) fn are_whole(messages: &[Arc<Message>]) -> bool {
    let mut open: VecDeque<&str> = VecDeque::new();
    let mut ids: HashSet<&str> = HashSet::new();
    for message in messages {
        match &**message {
            Message::Tools { results } => {
                let same = results.len() == open.len()
                    && results
                        .iter()
                        .zip(&open)
                        .all(|(result, id)| result.call_id == *id);
                if !same || results.is_empty() {
                    return false;
                }
                open.clear();
            }
            Message::User { .. } if !open.is_empty() => return false,
            Message::User { .. } => {}
            Message::Assistant(said) => {
                if !open.is_empty() {
                    return false;
                }
                open.extend(said.calls().map(|call| call.id.as_str()));
                if !open.iter().all(|id| !id.is_empty() && ids.insert(id)) {
                    return false;
                }
            }
        }
    }
    open.is_empty()
}

/// The conversation with every call answered exactly once. `taken` are the ids that may not be made
/// again; those of the conversation are added.
pub(crate) fn made_whole(
    messages: Vec<Arc<Message>>,
    dangling: &str,
    taken: &mut BTreeSet<String>,
) -> Vec<Arc<Message>> {
    let mut whole: Vec<Arc<Message>> = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().enumerate().peekable();
    while let Some((place, message)) = rest.next() {
        match &*message {
            Message::User { .. } => whole.push(message),
            // Its calls took the results that belong to them along.
            Message::Tools { .. } => {}
            Message::Assistant(said) => {
                let (said, asked) = with_ids(said, place, taken);
                whole.push(Arc::new(Message::Assistant(said)));
                if asked.is_empty() {
                    continue;
                }
                let mut given = Vec::new();
                while let Some((_, next)) = rest.next_if(|(_, next)| is_results(next)) {
                    if let Message::Tools { results } = &*next {
                        given.extend(results.iter().cloned());
                    }
                }
                let results = answered(asked, given, dangling);
                whole.push(Arc::new(Message::Tools { results }));
            }
        }
    }
    whole
}

fn is_results(message: &Message) -> bool {
    matches!(message, Message::Tools { .. })
}

/// A call with the id it came with.
struct Asked {
    came_with: String,
    call: Call,
}

fn with_ids(
    said: &Assistant,
    place: usize,
    taken: &mut BTreeSet<String>,
) -> (Assistant, Vec<Asked>) {
    let mut asked = Vec::new();
    let mut blocks = said.blocks.clone();
    for block in &mut blocks {
        if let Block::Call(call) = block {
            let came_with = call.id.clone();
            call.id = fresh_id(&came_with, (place, asked.len()), taken);
            let call = call.clone();
            asked.push(Asked { came_with, call });
        }
    }
    let source = said.source.clone();
    (Assistant { blocks, source }, asked)
}

/// One result for each call: the first that names it, else the first nameless one, else none.
fn answered(asked: Vec<Asked>, mut given: Vec<CallResult>, dangling: &str) -> Vec<CallResult> {
    let answer = |Asked { came_with, call }: Asked| {
        let found = given.iter().position(|result| result.call_id == came_with);
        match found.map(|place| given.remove(place)) {
            Some(result) => CallResult {
                call_id: call.id,
                ..result
            },
            None => unanswered(&call, dangling),
        }
    };
    asked.into_iter().map(answer).collect()
}

/// The result of a call that has none.
pub(crate) fn unanswered(call: &Call, why: &str) -> CallResult {
    CallResult {
        call_id: call.id.clone(),
        tool: call.name.clone(),
        text: why.to_owned(),
        is_error: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(ids: &[&str]) -> Arc<Message> {
        let blocks = ids.iter().map(|id| {
            Block::Call(Call {
                id: (*id).to_owned(),
                name: "t".to_owned(),
                arguments: "{}".to_owned(),
            })
        });
        Arc::new(Message::Assistant(Assistant {
            blocks: blocks.collect(),
            source: None,
        }))
    }

    fn results(ids: &[&str]) -> Arc<Message> {
        let results = ids.iter().enumerate().map(|(place, id)| CallResult {
            call_id: (*id).to_owned(),
            tool: "t".to_owned(),
            text: format!("result {place}"),
            is_error: false,
        });
        Arc::new(Message::Tools {
            results: results.collect(),
        })
    }

    fn user() -> Arc<Message> {
        Arc::new(Message::user("x"))
    }

    /// The ids and texts of all results.
    fn told(messages: &[Arc<Message>]) -> Vec<(String, String)> {
        let mut told = Vec::new();
        for message in messages {
            if let Message::Tools { results } = &**message {
                told.extend(results.iter().map(|r| (r.call_id.clone(), r.text.clone())));
            }
        }
        told
    }

    /// A conversation, and the results it has when it is whole.
    type Case = (Vec<Arc<Message>>, Vec<(&'static str, &'static str)>);

    #[test]
    fn a_broken_conversation_is_made_whole() {
        let cases: Vec<Case> = vec![
            (
                vec![user(), calls(&["a", "b"]), results(&["b"])],
                vec![("a", "?"), ("b", "result 0")],
            ),
            (vec![user(), calls(&["a"]), user()], vec![("a", "?")]),
            (vec![user(), calls(&["a"])], vec![("a", "?")]),
            (vec![user(), results(&["z"]), user()], vec![]),
            (
                vec![user(), calls(&["a"]), results(&["a", "z", "a"])],
                vec![("a", "result 0")],
            ),
            (
                vec![user(), calls(&["a", "b"]), results(&["a"]), results(&["b"])],
                vec![("a", "result 0"), ("b", "result 0")],
            ),
            (
                vec![user(), calls(&["", ""]), results(&["", ""])],
                vec![("call_1_0", "result 0"), ("call_1_1", "result 1")],
            ),
            (
                vec![
                    user(),
                    calls(&["a"]),
                    results(&["a"]),
                    calls(&["a"]),
                    results(&["a"]),
                ],
                vec![("a", "result 0"), ("call_3_0", "result 0")],
            ),
            (
                vec![user(), calls(&["a", "a"]), results(&["a", "a"])],
                vec![("a", "result 0"), ("call_1_1", "result 1")],
            ),
        ];
        for (broken, expected) in cases {
            assert!(!are_whole(&broken), "{broken:?}");
            let whole = made_whole(broken.clone(), "?", &mut BTreeSet::new());
            assert!(are_whole(&whole), "{whole:?}");
            let told = told(&whole);
            let told: Vec<_> = told
                .iter()
                .map(|(id, text)| (id.as_str(), text.as_str()))
                .collect();
            assert_eq!(told, expected, "{broken:?}");
            let again = made_whole(broken, "?", &mut BTreeSet::new());
            assert_eq!(again, whole, "the same each time");
        }
    }

    #[test]
    fn an_id_that_is_endless_is_made_anew() {
        let mut taken = BTreeSet::new();
        let id = "x".repeat(10_000);
        assert_eq!(fresh_id(&id, (3, 1), &mut taken), "call_3_1");
        assert_eq!(fresh_id("toolu_1", (3, 2), &mut taken), "toolu_1");
    }

    #[test]
    fn a_whole_conversation_stays_as_it_is() {
        let whole = vec![
            user(),
            calls(&["a", "b"]),
            results(&["a", "b"]),
            calls(&["c"]),
            results(&["c"]),
        ];
        assert!(are_whole(&whole));
        assert_eq!(made_whole(whole.clone(), "?", &mut BTreeSet::new()), whole);
    }
}
