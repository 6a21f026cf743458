//! A store whose files cannot be written: at the start of the harness, and while it serves. Root
//! may write what permission bits forbid, so the harness is started as somebody else there, and
//! root itself is held against files that nobody may write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use harness_proto::v1::{ErrorCode, RunOptions, RunState};
use harness_tests::durable::{journal, run_of, start, started};
use harness_tests::guarded::public;
use harness_tests::raw::{SOON, connect, runs, typed, within};
use harness_tests::{BOUND, Harness, HarnessBuilder, Process, Worker, eventually, program};
use nix::unistd::geteuid;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// A user that no system has.
const NOBODY: u32 = 61_817;

/// What whoever meets it is told to do.
const ADVICE: &str = "make it writable";

/// A store in a folder of its own.
struct Store(TempDir);

impl Store {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder of its own"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A harness on it that is subject to permission bits.
    fn harness(&self) -> HarnessBuilder {
        let builder = self.harness_of_root();
        match geteuid().is_root() {
            true => {
                let owner = Some(NOBODY);
                chown(self.0.path(), owner, owner).expect("root gives it away");
                builder.user(NOBODY)
            }
            false => builder,
        }
    }

    fn harness_of_root(&self) -> HarnessBuilder {
        let data = self.0.path().display().to_string();
        Harness::builder().argument("--data").argument(data)
    }

    fn set_mode(&self, file: &str, mode: u32) {
        let mode = Permissions::from_mode(mode);
        fs::set_permissions(self.file(file), mode).expect("a mode");
    }

    fn mode(&self, file: &str) -> u32 {
        let metadata = fs::metadata(self.file(file)).expect("it is there");
        metadata.permissions().mode() & 0o777
    }

    /// Makes files immutable, or no more so; whether that can be done here.
    fn immutable(&self, flag: &str) -> bool {
        let files = ["harness.db", "harness.db-wal"].map(|name| self.file(name));
        let changed = Command::new("chattr").arg(flag).args(files).output();
        changed.is_ok_and(|changed| changed.status.success())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // What is left immutable by a test that failed could not be deleted.
        if geteuid().is_root() {
            self.immutable("-i");
        }
    }
}

fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

#[test]
fn only_its_user_can_read_what_a_harness_keeps() {
    let store = Store::new();
    let folder = store.file("below/data");
    let harness = Harness::builder()
        .argument("--data")
        .argument(folder.display().to_string())
        .start();
    let _echo = Worker::start(&harness, "echo");
    let told = harness.cli(["run", "start", "echo", "hello"]);
    assert_eq!(told.code, Some(0), "{told}");
    assert_eq!(store.mode("below/data"), 0o700);
    for file in [
        "harness.db",
        "harness.db-wal",
        "harness.db-shm",
        "harness.lock",
    ] {
        assert_eq!(store.mode(&format!("below/data/{file}")), 0o600, "{file}");
    }
}

#[test]
fn a_store_is_written_as_the_effective_user() {
    if !geteuid().is_root() {
        return;
    }
    let store = Store::new();
    store.set_mode(".", 0o700);
    // Twice: the files are made, and are there.
    for _ in 0..2 {
        let mut serve = Command::new("setpriv");
        serve
            .arg(format!("--ruid={NOBODY}"))
            .arg(program("harness"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(store.0.path());
        let mut harness = Process::start("harness serve", serve);
        let line = harness.wait_for_line("listening on ");
        let address = line.rsplit(' ').next().expect("an address");
        let runtime = runtime();
        let channel = runtime.block_on(connect(address));
        let mut start = start("echo", "1");
        start.options = Some(RunOptions {
            wait_for_agent: true,
            ..RunOptions::default()
        });
        let run = runtime.block_on(started(&channel, start));
        assert_eq!(run.state(), RunState::Queued);
    }
}

#[test]
fn a_store_that_cannot_be_written_is_refused_at_the_start_with_what_to_do() {
    let (store, runtime) = (Store::new(), runtime());
    let run_id = {
        let harness = store.harness().start();
        let _echo = Worker::start(&harness, "echo");
        let channel = runtime.block_on(connect(harness.address()));
        let run = runtime.block_on(started(&channel, start("echo", "1")));
        runtime.block_on(journal(&channel, &run.run_id, SOON));
        let left = harness.stop();
        assert_eq!(left.code, Some(0), "{left}");
        run.run_id
    };
    for (file, sealed, open) in [("harness.db", 0o400, 0o600), (".", 0o500, 0o700)] {
        store.set_mode(file, sealed);
        let refused = store.harness().refused();
        store.set_mode(file, open);
        assert_eq!(refused.code, Some(1), "{file}: {refused}");
        let folder = store.0.path().display().to_string();
        for text in [ADVICE, &folder] {
            assert!(refused.stderr.contains(text), "{file}: {refused}");
        }
    }
    let harness = store.harness().start();
    let channel = runtime.block_on(connect(harness.address()));
    let run = runtime.block_on(run_of(&channel, &run_id)).expect("known");
    assert_eq!(run.state(), RunState::Succeeded);
}

#[test]
fn a_journal_that_nobody_may_write_beside_is_read() {
    let store = Store::new();
    let harness = store.harness().start();
    let told = harness.cli(["run", "start", "echo", "hello", "--wait", "--json"]);
    let run_id = told.json()["run_id"].as_str().expect("an id").to_owned();
    harness.stop();
    // As a backup on a medium that takes nothing more.
    store.set_mode("harness.db", 0o444);
    store.set_mode(".", 0o555);
    let program = public(&["harness"]);
    let mut command = Command::new(program.path().join("harness"));
    let file = store.file("harness.db");
    command.args(["run", "journal", "--file"]).arg(&file);
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let read = Process::run("harness (client)", command);
    store.set_mode(".", 0o755);
    assert_eq!(read.code, Some(0), "{read}");
    assert_eq!(read.stdout.matches(&run_id).count(), 1, "{read}");
    for left in ["harness.db-wal", "harness.db-shm"] {
        assert!(!store.file(left).exists(), "{left}");
    }
}

/// What the harness says of durable runs to whoever asks how it is.
pub(super) async fn health(channel: &Channel) -> ServingStatus {
    let request = HealthCheckRequest {
        service: "harness.v1.RunService".to_owned(),
    };
    let mut client = HealthClient::new(channel.clone());
    let told = within(SOON, client.check(request)).await.expect("known");
    told.into_inner().status()
}

/// Durable runs are refused as long as the store is sealed, all else goes on, and nothing has to be
/// started anew.
fn sealed_and_opened(mut harness: Harness, seal: impl FnOnce(), open: impl FnOnce()) {
    let runtime = runtime();
    let _echo = Worker::start(&harness, "echo");
    let channel = runtime.block_on(connect(harness.address()));
    let before = runtime.block_on(started(&channel, start("echo", "1")));
    runtime.block_on(journal(&channel, &before.run_id, SOON));
    assert_eq!(runtime.block_on(health(&channel)), ServingStatus::Serving);

    seal();
    let refused = runtime.block_on(runs(&channel).start_run(start("echo", "2")));
    let refused = refused.expect_err("nothing is written");
    let told = typed(&refused, Code::Unavailable, ErrorCode::StoreUnavailable);
    assert!(told.message.contains(ADVICE), "{}", told.message);
    let asked = harness.cli(["ask", "echo", "hello"]);
    assert_eq!(
        (asked.code, &*asked.stdout),
        (Some(0), "hello\n"),
        "{asked}"
    );
    assert_eq!(
        runtime.block_on(health(&channel)),
        ServingStatus::NotServing
    );
    let logged = harness.process().wait_for_line("the store fails");
    assert!(logged.contains(ADVICE), "{logged}");
    // What is on disk can be read.
    let run = runtime.block_on(run_of(&channel, &before.run_id));
    assert_eq!(run.expect("known").state(), RunState::Succeeded);

    open();
    let after = eventually("durable runs are taken again", BOUND, || {
        let answer = runtime.block_on(runs(&channel).start_run(start("echo", "3")));
        answer.ok()?.into_inner().run
    });
    runtime.block_on(journal(&channel, &after.run_id, SOON));
    assert_eq!(runtime.block_on(health(&channel)), ServingStatus::Serving);
    harness.process().wait_for_line("the store works again");
}

#[test]
fn a_file_that_becomes_read_only_refuses_durable_runs_until_it_is_writable_again() {
    for file in ["harness.db", "harness.db-wal"] {
        let store = Store::new();
        let seal = || store.set_mode(file, 0o400);
        sealed_and_opened(store.harness().start(), seal, || {
            store.set_mode(file, 0o600)
        });
    }
}

#[test]
fn files_that_even_root_may_not_write_refuse_durable_runs_until_they_are_writable_again() {
    let store = Store::new();
    let harness = store.harness_of_root().start();
    // It takes root and a file system that knows the flag; permission bits are for all others.
    let can_be_set = store.immutable("+i");
    assert!(store.immutable("-i") || !can_be_set);
    if !can_be_set {
        return;
    }
    let seal = || assert!(store.immutable("+i"), "it could be set before");
    sealed_and_opened(harness, seal, || assert!(store.immutable("-i")));
}
