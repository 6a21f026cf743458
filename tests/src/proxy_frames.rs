//! Where one HTTP/2 frame ends and another may be put between, for the proxy. Knows no sockets.

const HEAD: usize = 9;
/// The client's first bytes, `PRI * HTTP/2.0` and so on.
const PREFACE: usize = 24;
const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the bytes of one direction.
pub(crate) struct Frames {
    /// Bytes of the frame's head seen so far.
    head: Vec<u8>,
    /// Bytes of the preface or the payload still to come.
    left: usize,
    /// Inside a header block, which no other frame may interrupt.
    headers: bool,
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
        }
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
        let (length, kind, flags) = (&self.head[..3], self.head[3], self.head[4]);
        self.left = length
            .iter()
            .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.headers = flags & END_HEADERS == 0;
        }
        self.head.clear();
    }

    /// A GOAWAY frame with NO_ERROR.
    pub(crate) fn go_away(last_stream: u32) -> Vec<u8> {
        let mut frame = vec![0, 0, 8, GOAWAY, 0, 0, 0, 0, 0];
        frame.extend_from_slice(&last_stream.to_be_bytes());
        frame.extend_from_slice(&0_u32.to_be_bytes());
        frame
    }
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
}
