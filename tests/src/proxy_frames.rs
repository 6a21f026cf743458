//! Where one HTTP/2 frame ends and another may be put between, for the proxy, and the frames it
//! makes itself. Knows no sockets.

const HEAD: usize = 9;
/// The client's first bytes, `PRI * HTTP/2.0` and so on.
const PREFACE: usize = 24;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const CANCEL: u32 = 8;

/// Follows the bytes of one direction.
pub(crate) struct Frames {
    /// Bytes of the frame's head seen so far.
    head: Vec<u8>,
    /// Bytes of the preface or the payload still to come.
    left: usize,
    /// Inside a header block, which no other frame may interrupt.
    headers: bool,
    /// The newest stream that headers came on.
    newest: u32,
}

/// What a whole frame is to a proxy that answers PINGs itself.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With the frame that answers it.
    Ping(Vec<u8>),
    /// The answer to the peer's own.
    PingAnswer,
    Other,
}

impl Frames {
    pub(crate) fn of_client() -> Self {
        Self {
            left: PREFACE,
            ..Self::of_server()
        }
    }

    pub(crate) fn of_server() -> Self {
        Self {
            head: Vec::with_capacity(HEAD),
            left: 0,
            headers: false,
            newest: 0,
        }
    }

    /// The newest stream that headers came on; 0 when there was none.
    pub(crate) fn newest_stream(&self) -> u32 {
        self.newest
    }

    /// Whether a frame may be put in here.
    pub(crate) fn at_boundary(&self) -> bool {
        self.left == 0 && self.head.is_empty() && !self.headers
    }

    /// Takes the next bytes up to the end of a frame; gives how many these were.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        if self.left == 0 {
            taken = bytes.len().min(HEAD - self.head.len());
            self.head.extend_from_slice(&bytes[..taken]);
            if self.head.len() < HEAD {
                return taken;
            }
            self.read_head();
        }
        let payload = (bytes.len() - taken).min(self.left);
        self.left -= payload;
        taken + payload
    }

    fn read_head(&mut self) {
        let (kind, flags) = (self.head[3], self.head[4]);
        self.left = number(&self.head[..3]) as usize;
        if kind == HEADERS {
            self.newest = self.newest.max(number(&self.head[5..]));
        }
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.headers = flags & END_HEADERS == 0;
        }
        self.head.clear();
    }

    /// The length of the whole frame these bytes begin with; none before its head is there.
    pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
        Some(HEAD + number(bytes.get(..HEAD)?.get(..3)?) as usize)
    }

    /// What a whole frame is.
    pub(crate) fn kind(frame: &[u8]) -> Kind {
        match (frame[3], frame[4] & ACK) {
            (PING, 0) => {
                let mut answer = frame.to_vec();
                answer[4] = ACK;
                Kind::Ping(answer)
            }
            (PING, _) => Kind::PingAnswer,
            _ => Kind::Other,
        }
    }

    /// RST_STREAM frames (CANCEL) for every stream a client can have opened up to this one.
    pub(crate) fn resets(newest: u32) -> Vec<u8> {
        let mut frames = Vec::new();
        for stream in (1..=newest).step_by(2) {
            frames.extend_from_slice(&[0, 0, 4, RST_STREAM, 0]);
            frames.extend_from_slice(&stream.to_be_bytes());
            frames.extend_from_slice(&CANCEL.to_be_bytes());
        }
        frames
    }

    /// A GOAWAY frame with NO_ERROR.
    pub(crate) fn go_away(last_stream: u32) -> Vec<u8> {
        let mut frame = vec![0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
        frame.extend_from_slice(&last_stream.to_be_bytes());
        frame.extend_from_slice(&0_u32.to_be_bytes());
        frame
    }
}

/// Bytes as a number, the highest first.
fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundaries(mut frames: Frames, bytes: &[u8], chunk: usize) -> Vec<usize> {
        let (mut at, mut found) = (0, Vec::new());
        for mut rest in bytes.chunks(chunk) {
            while !rest.is_empty() {
                let taken = frames.advance(rest);
                assert!(taken > 0);
                at += taken;
                rest = &rest[taken..];
                if frames.at_boundary() {
                    found.push(at);
                }
            }
        }
        found
    }

    #[test]
    fn frames_are_told_apart_however_the_bytes_come() {
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let open_headers = [0, 0, 2, HEADERS, 0, 0, 0, 0, 1, 7, 7];
        let continuation = [0, 0, 1, CONTINUATION, END_HEADERS, 0, 0, 0, 1, 7];
        let bytes = [
            &settings[..],
            &Frames::go_away(1),
            &open_headers,
            &continuation,
            &settings,
        ]
        .concat();
        for chunk in 1..=bytes.len() {
            let found = boundaries(Frames::of_server(), &bytes, chunk);
            assert_eq!(found, [9, 26, 47, 56], "in chunks of {chunk}");
            let preface = [&[b'P'; PREFACE][..], &bytes].concat();
            let found = boundaries(Frames::of_client(), &preface, chunk);
            assert_eq!(found, [24, 33, 50, 71, 80], "in chunks of {chunk}");
        }
    }

    #[test]
    fn a_ping_is_answered_with_what_it_carries_and_an_answer_is_not() {
        let ping = *b"\x00\x00\x08\x06\x00\x00\x00\x00\x00are you?";
        assert_eq!(Frames::length(&ping[..8]), None);
        assert_eq!(Frames::length(&ping), Some(ping.len()));
        let Kind::Ping(answer) = Frames::kind(&ping) else {
            panic!("a PING")
        };
        assert_eq!((answer[4], &answer[9..]), (ACK, &b"are you?"[..]));
        assert_eq!(Frames::kind(&answer), Kind::PingAnswer);
        assert_eq!(Frames::kind(&Frames::go_away(1)), Kind::Other);
    }

    #[test]
    fn every_stream_a_client_opened_is_reset() {
        let mut frames = Frames::of_server();
        for stream in [1, 5, 3] {
            let headers = [0, 0, 0, HEADERS, END_HEADERS, 0, 0, 0, stream];
            assert_eq!(frames.advance(&headers), headers.len());
        }
        assert_eq!(frames.newest_stream(), 5);
        let resets = Frames::resets(5);
        let streams: Vec<u8> = resets.chunks(13).map(|frame| frame[8]).collect();
        assert_eq!(streams, [1, 3, 5]);
    }
}
