//! HTTP/2 frames by hand, for peers that no library would let a test be.

use bytes::{BufMut, Bytes, BytesMut};

/// A client's first bytes.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
pub const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// Frame types.
pub const DATA: u8 = 0;
/// Opens a call.
pub const HEADERS: u8 = 1;
/// Ends a stream at once.
pub const RST_STREAM: u8 = 3;
/// Is answered by every peer that is there.
pub const PING: u8 = 6;
/// Ends a connection.
pub const GOAWAY: u8 = 7;
/// A flag: an answer to a PING or SETTINGS.
pub const ACK: u8 = 1;
/// A flag: the whole header block is here.
pub const END_HEADERS: u8 = 4;

/// Appends a frame.
///
/// # Panics
/// When the payload is too large for one.
pub fn put_frame(to: &mut BytesMut, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len())
        .expect("a small frame")
        .to_be_bytes();
    to.extend_from_slice(&length[1..]);
    to.put_u8(kind);
    to.put_u8(flags);
    to.put_u32(stream);
    to.extend_from_slice(payload);
}

/// The header block of a call such as `RunService/Ask`, in HPACK literals.
///
/// # Panics
/// When the name is too long for a literal of one length byte.
#[must_use]
pub fn call_headers(rpc: &str) -> Bytes {
    let mut block = BytesMut::new();
    // `:method: POST` and `:scheme: http` of the static table.
    block.extend_from_slice(&[0x83, 0x86]);
    let path = format!("/harness.v1.{rpc}");
    block.extend_from_slice(&[0x04, u8::try_from(path.len()).expect("short")]);
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, 1, b'h']);
    let content_type = b"application/grpc";
    block.extend_from_slice(&[0x0f, 0x10, u8::try_from(content_type.len()).expect("short")]);
    block.extend_from_slice(content_type);
    block.freeze()
}
