//! Peers that send anything at all: whatever it is, the harness answers or closes, goes on serving,
//! panics nowhere and keeps nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use bytes::BytesMut;
use harness_tests::http2::{
    DATA, END_HEADERS, HEADERS, PREFACE, SETTINGS, call_headers, put_frame,
};
use harness_tests::{Asker, BOUND, Harness, Worker, eventually};
use serde_json::json;

const CONFIG: &str = "[limits]\nhello_timeout = \"500ms\"\nbody_timeout = \"500ms\"\n\
                      keepalive_interval = \"300ms\"\nkeepalive_timeout = \"1s\"\n";
const PEERS: u64 = 400;
/// What the process may grow by, whoever was there before.
const GROWTH_MAX: u64 = 24 << 20;

/// Numbers by chance, the same in every run (xorshift64*).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}

/// A beginning that some peer of the harness makes, or none, and anything after it.
fn noise(dice: &mut Dice) -> Vec<u8> {
    let mut sent = BytesMut::new();
    let rpcs = [
        "WorkerService/Attach",
        "RunService/Ask",
        "RunService/AskMany",
        "RunService/WatchRun",
        "AdminService/ListAgents",
    ];
    match dice.below(6) {
        0 => {}
        1 => sent.extend_from_slice(b"POST /v1/agents/puppet/ask HTTP/1.1\r\nHost: h\r\n"),
        2 => sent.extend_from_slice(PREFACE),
        way => {
            sent.extend_from_slice(PREFACE);
            sent.extend_from_slice(&SETTINGS);
            let rpc = rpcs[dice.below(rpcs.len() as u64) as usize];
            put_frame(&mut sent, HEADERS, END_HEADERS, 1, &call_headers(rpc));
            if way > 3 {
                // Whole frames of any kind, on streams that may not even be there.
                for _ in 0..dice.below(8) {
                    let (length, kind) = (dice.below(64), dice.below(12));
                    let (flags, stream) = (dice.below(256), dice.below(6));
                    let payload = dice.bytes(length);
                    let [kind, flags] = [kind, flags].map(|byte| byte.to_le_bytes()[0]);
                    put_frame(&mut sent, kind, flags, stream as u32, &payload);
                }
            } else {
                // Whole messages of any content.
                for _ in 0..=dice.below(4) {
                    let length = dice.below(200);
                    let mut message = vec![0, 0, 0, 0, length.to_le_bytes()[0]];
                    message.extend(dice.bytes(length));
                    put_frame(&mut sent, DATA, 0, 1, &message);
                }
                return sent.to_vec();
            }
        }
    }
    let more = dice.below(300);
    sent.extend_from_slice(&dice.bytes(more));
    sent.to_vec()
}

#[test]
fn noise_of_every_kind_is_survived_and_leaves_nothing_behind() {
    let mut harness = Harness::builder().config(CONFIG).start();
    let _worker = Worker::puppet().start(&harness);
    let asker = Asker::new(&harness, "puppet");
    let question = json!({"do": "reply", "value": 1});
    assert_eq!(asker.ask(&question, BOUND).json(), 1);
    let (files, memory) = (
        harness.process().open_files(),
        harness.process().resident_bytes(),
    );
    let mut dice = Dice(0x5eed);
    let mut open = Vec::new();
    for peer in 0..PEERS {
        let mut stream = TcpStream::connect(harness.address()).expect("it still listens");
        // A harness that has heard enough may close before all is written.
        let _ = stream.write_all(&noise(&mut dice));
        match dice.below(3) {
            0 => drop(stream),
            1 => {
                let _ = stream.shutdown(Shutdown::Write);
                open.push(stream);
            }
            _ => open.push(stream),
        }
        if peer % 50 == 0 {
            assert_eq!(asker.ask(&question, BOUND).json(), 1);
        }
    }
    // None of those that wait for ever is waited for: the harness closes each by itself.
    for mut stream in open {
        stream
            .set_read_timeout(Some(BOUND))
            .expect("a timeout may be set");
        let mut answer = [0; 4096];
        while let Ok(1..) = stream.read(&mut answer) {}
    }
    eventually("its connections are gone", BOUND, || {
        (harness.process().open_files() <= files).then_some(())
    });
    assert_eq!(asker.ask(&question, BOUND).json(), 1);
    let agents = harness.cli(["agents", "--json"]).json();
    assert_eq!(agents.as_array().map(Vec::len), Some(1), "{agents}");
    let grown = harness.process().resident_bytes().saturating_sub(memory);
    assert!(grown < GROWTH_MAX, "it grew by {grown} bytes");
    let log = harness.process().stderr();
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn peers_that_send_a_byte_now_and_then_are_not_waited_for() {
    let harness = Harness::builder().config(CONFIG).start();
    let _worker = Worker::puppet().start(&harness);
    let post = "POST /v1/agents/puppet/ask HTTP/1.1\r\nHost: h\r\n";
    let beginnings = [
        String::new(),
        "PRI * HT".to_owned(),
        "GET /healthz HT".to_owned(),
        format!("{post}X-Slow: "),
        format!("{post}Content-Length: 1000\r\n\r\n\""),
    ];
    let address = harness.address();
    std::thread::scope(|scope| {
        for beginning in &beginnings {
            scope.spawn(move || {
                let mut stream = TcpStream::connect(address).expect("it listens");
                stream
                    .set_read_timeout(Some(Duration::from_millis(50)))
                    .expect("a timeout may be set");
                stream.write_all(beginning.as_bytes()).expect("written");
                // The next byte of what would be a preface, so that only time speaks against it.
                let mut rest = PREFACE.iter().cycle().skip(beginning.len());
                let what = format!("the end of {beginning:?}");
                eventually(&what, Duration::from_secs(5), || {
                    let byte = *rest.next().expect("a cycle has no end");
                    if stream.write_all(&[byte]).is_err() {
                        return Some(());
                    }
                    match stream.read(&mut [0; 512]) {
                        Ok(0) => Some(()),
                        Ok(_) => None,
                        Err(error) => {
                            let waits = error.kind() == std::io::ErrorKind::WouldBlock;
                            (!waits).then_some(())
                        }
                    }
                });
            });
        }
    });
    let asker = Asker::new(&harness, "puppet");
    let question = json!({"do": "reply", "value": 1});
    assert_eq!(asker.ask(&question, BOUND).json(), 1);
}
