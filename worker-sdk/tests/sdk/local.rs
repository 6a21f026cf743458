//! The journal in a local file.

use std::path::Path;
use std::time::Duration;

use worker_sdk::journal::{Entry, Journal, Local};
use worker_sdk::{Agent, AgentError, Context, ErrorKind, Payload, StepError, agent_fn};

const RUN: &str = "0192f0c1-2d3e-7a4b-8c5d-6e7f8091a2b3";

/// The next attempt of the run in this file, opened anew as after a crash.
fn context(path: &Path) -> Context {
    let attempt = Local::open(path).unwrap().attempt(RUN).unwrap();
    attempt.context()
}

#[tokio::test]
async fn an_agent_runs_alone_until_its_deadline_and_goes_on_in_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let file = Local::open(folder.path().join("journal.db")).unwrap();
    let agent = agent_fn(|ctx: Context, hang: bool| async move {
        assert_eq!(ctx.run_id(), RUN);
        let first = ctx.attempt();
        let first: u32 = ctx.step("first", |_| async move { Ok(first) }).await?;
        if hang {
            std::future::pending::<()>().await;
        }
        assert!(ctx.time_left() > Duration::from_secs(86_400 * 365));
        Ok::<_, AgentError>((first, ctx.attempt()))
    });
    let whole = file.attempt(RUN).unwrap().run(&agent, false).await;
    assert_eq!(whole.unwrap(), (1, 1));
    let attempt = file.attempt(RUN).unwrap();
    let stopped = attempt.timeout(Duration::from_millis(50)).run(&agent, true);
    let error = stopped.await.unwrap_err();
    assert_eq!(error.error_type(), "DEADLINE_EXCEEDED");
    let again = file.attempt(RUN).unwrap().run(&agent, false).await;
    assert_eq!(
        again.unwrap(),
        (1, 2),
        "the step of the first attempt stands"
    );
}

#[tokio::test]
async fn an_attempt_after_a_crash_goes_on_where_the_file_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let ctx = context(&path);
    let look = |ctx: Context, value: u64| async move {
        ctx.step("look", move |_| async move { Ok(value) }).await
    };
    assert_eq!(look(ctx.clone(), 1).await.unwrap(), 1);
    ctx.output("piece").await.unwrap();
    // The crash: the work has begun and never ends.
    let charge = ctx.step("charge", |_| std::future::pending::<Result<u64, _>>());
    let mut charge = charge.side_effect().into_future();
    tokio::select! {
        biased;
        _ = &mut charge => unreachable!("it never ends"),
        () = begun(&path) => {}
    }
    drop(charge);

    let ctx = context(&path);
    assert_eq!(ctx.attempt(), 2);
    assert_eq!(look(ctx.clone(), 9).await.unwrap(), 1, "what was recorded");
    let charge = ctx.step("charge", |_| async { Ok(1) }).side_effect().await;
    assert!(matches!(charge, Err(StepError::OutcomeUnknown { .. })));
    let next: u64 = ctx.step("next", |_| async { Ok(3) }).await.unwrap();
    assert_eq!(next, 3);
    assert_eq!(context(&path).attempt(), 3);
}

/// Waits until the file holds the begin of a step `charge`.
async fn begun(path: &Path) {
    use worker_sdk::journal::Recorded;
    let is_charge = |recorded: &Recorded| match &recorded.entry {
        Entry::Step(step) => step.name() == "charge",
        _ => false,
    };
    crate::fake::within("begin", async {
        loop {
            let attempt = Local::open(path).unwrap().attempt(RUN).unwrap();
            if attempt.replay().iter().any(is_charge) {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn two_attempts_cannot_both_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = Local::open(folder.path().join("journal.db")).unwrap();
    let (old, new) = (file.attempt(RUN).unwrap(), file.attempt(RUN).unwrap());
    let piece = || Entry::Output(Payload::text("piece"));
    new.append(piece()).await.unwrap();
    new.append(piece()).await.unwrap();
    let error = old.append(piece()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable);
    assert!(error.message().contains("another attempt"), "{error}");
}

#[tokio::test]
async fn a_run_that_is_begun_goes_on_under_the_id_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let file = Local::open(folder.path().join("journal.db")).unwrap();
    let agent = agent_fn(|ctx: Context, said: String| async move {
        Ok(ctx.step("say", |_| async { Ok(said) }).await?)
    });
    let (first, other) = (file.begin(), file.begin());
    let run_id = first.run_id();
    assert_ne!(run_id, other.run_id());
    assert_eq!(first.run(&agent, "one".to_owned()).await.unwrap(), "one");
    assert_eq!(other.run(&agent, "two".to_owned()).await.unwrap(), "two");
    let second = file.attempt(&run_id).unwrap();
    assert_eq!((second.number(), second.run_id()), (2, run_id));
    assert_eq!(second.run(&agent, "three".to_owned()).await.unwrap(), "one");
}

#[tokio::test]
async fn what_is_no_journal_or_too_large_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let attempt = Local::open(&path).unwrap().attempt(RUN).unwrap();
    let large = Entry::Output(Payload::text("x".repeat(2 << 20)));
    let error = attempt.append(large).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PayloadTooLarge);
    let error = Local::open(&path).unwrap().attempt("run-7").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    let text = folder.path().join("text");
    std::fs::write(
        &text,
        "no database, but quite long enough to be looked at as one",
    )
    .unwrap();
    for path in [&text, &folder.path().join("no/such/folder.db")] {
        let error = Local::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StoreUnavailable, "{error:?}");
        assert!(std::error::Error::source(&error).is_some());
    }
}

#[tokio::test]
async fn a_step_that_failed_to_be_written_did_not_happen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.db");
    let ctx = context(&path);
    let agent = agent_fn(|ctx: Context, (): ()| async move {
        Ok(ctx
            .step("big", |_| async { Ok("x".repeat(2 << 20)) })
            .await?)
    });
    let error = agent.reply(ctx, ()).await.unwrap_err();
    assert_eq!(error.error_type(), "PAYLOAD_TOO_LARGE");
    let recorded = Local::open(&path).unwrap().attempt(RUN).unwrap().replay();
    assert_eq!(recorded.len(), 1, "its begin: {recorded:?}");
}
