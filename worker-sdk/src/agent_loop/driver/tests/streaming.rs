//! The text of an answer on its way to the caller while it comes.

use tokio::sync::{Semaphore, watch};

use super::*;
use crate::agent_loop::{Model, Pieces, Request, Response};
use crate::journal::{Appending, Entry, Journal, Memory, Recorded};

/// Says these one after the other; behind each it waits for a permit.
struct Saying {
    words: Vec<String>,
    said: watch::Sender<usize>,
    may: Arc<Semaphore>,
}

impl Saying {
    fn new(words: impl IntoIterator<Item = String>) -> Self {
        Self {
            words: words.into_iter().collect(),
            said: watch::Sender::default(),
            may: Arc::new(Semaphore::new(0)),
        }
    }
}

impl Model for Saying {
    fn provider(&self) -> &'static str {
        "saying"
    }

    fn model(&self) -> &'static str {
        "saying"
    }

    async fn complete(
        &self,
        request: &Request,
        pieces: &mut Pieces,
    ) -> Result<Response, ModelError> {
        for word in &self.words {
            pieces.text(word).await?;
            self.said.send_modify(|said| *said += 1);
            self.may.acquire().await.expect("it is open").forget();
        }
        let whole = ScriptedModel::new([Line::text(self.words.concat())]);
        Model::complete(&whole, request, &mut Pieces::ignored()).await
    }
}

/// A journal that takes output when it is let.
#[derive(Clone)]
struct Slow {
    memory: Memory,
    may: Arc<Semaphore>,
}

impl Journal for Slow {
    fn replay(&self) -> Vec<Recorded> {
        self.memory.replay()
    }

    fn append(&self, entry: Entry) -> Appending<'_> {
        Box::pin(async move {
            if let Entry::Output(_) = entry {
                self.may.acquire().await.expect("it is open").forget();
            }
            self.memory.append(entry).await
        })
    }
}

impl Slow {
    fn new() -> Self {
        Self {
            memory: Memory::new(),
            may: Arc::new(Semaphore::new(0)),
        }
    }

    /// The texts of the pieces, in order.
    fn texts(&self) -> Vec<String> {
        let entries = self.memory.entries().into_iter();
        let texts = entries.filter_map(|recorded| match recorded.entry {
            Entry::Output(payload) => {
                let Piece::Text { turn: 1, text } = payload.to_json().expect("a piece") else {
                    panic!("{payload:?}");
                };
                Some(text)
            }
            _ => None,
        });
        texts.collect()
    }
}

#[tokio::test]
async fn what_comes_while_a_piece_is_being_written_is_the_next_piece() {
    let words: Vec<String> = (0..500).map(|n| format!("{n} ")).collect();
    let model = Arc::new(Saying::new(words.clone()));
    model.may.add_permits(499);
    let journal = Slow::new();
    let agent = AgentLoop::builder(Arc::clone(&model)).build();
    let agent = agent.expect("an agent");
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let prompt = Prompt::from("go");
    let mut said = model.said.subscribe();
    let test = async {
        said.wait_for(|said| *said == 500).await.expect("it says");
        assert!(journal.texts().is_empty());
        journal.may.add_permits(10);
        model.may.add_permits(1);
    };
    let (ended, ()) = tokio::join!(agent.run(&ctx, &prompt), test);
    assert!(matches!(
        ended.expect("a run").end,
        End::Answered { text, .. } if text == words.concat()
    ));
    let texts = journal.texts();
    assert!(texts.len() <= 3, "{} pieces", texts.len());
    assert_eq!(texts.concat(), words.concat());
}

#[tokio::test]
async fn what_was_said_goes_out_while_the_model_is_silent() {
    let words = ["One. ", "Two. ", "Three."].map(str::to_owned);
    let model = Arc::new(Saying::new(words.clone()));
    let journal = Slow::new();
    journal.may.add_permits(10);
    let agent = AgentLoop::builder(Arc::clone(&model)).build();
    let agent = agent.expect("an agent");
    let (ctx, _) = testing::context().journal(journal.clone()).build();
    let prompt = Prompt::from("go");
    let test = async {
        for so_far in 1..=3 {
            // The model goes on only when its caller has what it said before.
            while journal.texts() != words[..so_far] {
                tokio::task::yield_now().await;
            }
            model.may.add_permits(1);
        }
    };
    let both = async { tokio::join!(agent.run(&ctx, &prompt), test) };
    let (ended, ()) = tokio::time::timeout(Duration::from_secs(10), both)
        .await
        .expect("each goes out by itself");
    assert!(matches!(ended.expect("a run").end, End::Answered { .. }));
}

#[tokio::test]
async fn pieces_fit_into_an_entry_and_are_the_text() {
    let text: String = (0..3_000).map(|n| ['é', '\u{1}', 'x'][n % 3]).collect();
    let model = ScriptedModel::new([Line::text(text.clone())]);
    let agent = AgentLoop::builder(model).build().expect("an agent");
    let journal = Slow::new();
    journal.may.add_permits(Semaphore::MAX_PERMITS);
    let limit = 2_000;
    let (ctx, _) = testing::context()
        .journal(journal.clone())
        .entry_bytes_max(limit)
        .build();
    // The answer itself does not fit: what had gone out stays.
    agent.run(&ctx, &"go".into()).await.expect("a run");
    let texts = journal.texts();
    assert_eq!(texts.concat(), text);
    assert!((10..30).contains(&texts.len()), "{}", texts.len());
    for recorded in journal.memory.entries() {
        assert!(recorded.entry.to_bytes().len() as u64 <= limit);
    }
}

#[tokio::test]
async fn an_answer_that_cannot_go_out_is_given_up() {
    /// Takes no output.
    #[derive(Clone)]
    struct Deaf(Memory);
    impl Journal for Deaf {
        fn replay(&self) -> Vec<Recorded> {
            self.0.replay()
        }
        fn append(&self, entry: Entry) -> Appending<'_> {
            Box::pin(async move {
                match entry {
                    Entry::Output(_) => Err(crate::Error::new(ErrorKind::PayloadTooLarge, "no")),
                    _ => self.0.append(entry).await,
                }
            })
        }
    }
    // The model would say more and never come to its end.
    let model = Saying::new(["One. ".to_owned(), "Two. ".to_owned()]);
    let agent = AgentLoop::builder(model).build().expect("an agent");
    let (ctx, _) = testing::context().journal(Deaf(Memory::new())).build();
    let ended = agent.run(&ctx, &"go".into()).await.expect("a run");
    let End::ModelFailed(failed) = ended.end else {
        panic!("{:?}", ended.end);
    };
    assert_eq!((&*failed.error_type, failed.may_pass), ("Aborted", false));
}
