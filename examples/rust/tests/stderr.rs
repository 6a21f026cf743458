//! The workers and a standard error that nobody reads.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Killed when the test ends.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself, which is what the test then says.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_worker_goes_on_when_its_standard_error_is_closed() {
    for program in [
        env!("CARGO_BIN_EXE_echo"),
        env!("CARGO_BIN_EXE_count-words"),
        env!("CARGO_BIN_EXE_blocking"),
        env!("CARGO_BIN_EXE_trip"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        let mut worker = Command::new(program)
            .env("HARNESS_ADDRESS", address.to_string())
            .env_remove("HARNESS_SLOTS")
            .stderr(Stdio::piped())
            .spawn()
            .map(Worker)
            .expect("the worker starts");
        drop(worker.0.stderr.take());
        // Every connection is closed at once. The first loss is what it logs; it must still try.
        let (accepted, tries) = mpsc::channel();
        std::thread::spawn(
            move || {
                while listener.accept().is_ok() && accepted.send(()).is_ok() {}
            },
        );
        for _ in 0..4 {
            let tried = tries.recv_timeout(Duration::from_secs(20));
            assert!(
                tried.is_ok(),
                "{program} gave up: {:?}",
                worker.0.try_wait()
            );
        }
    }
}
