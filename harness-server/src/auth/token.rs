//! A token: 32 random bytes, as text in hexadecimal.
//!
//! It is never shown: not by `Debug`, and by no error.

use std::fmt;

/// How many bytes a token has.
const BYTES: usize = 32;

/// A secret that names whoever has it. Looked up by a keyed hash, so that how long that takes says
/// nothing of it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token([u8; BYTES]);

impl Token {
    /// One that nobody can guess.
    pub(super) fn random() -> Self {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).expect("the system must have random bytes");
        Self(bytes)
    }

    /// The token of an `authorization` of the scheme Bearer.
    pub(super) fn of_bearer(authorization: &[u8]) -> Option<Self> {
        const SCHEME: &str = "bearer ";
        let text = std::str::from_utf8(authorization).ok()?;
        let (scheme, token) = text.split_at_checked(SCHEME.len())?;
        if !scheme.eq_ignore_ascii_case(SCHEME) || token.len() != 2 * BYTES || !token.is_ascii() {
            return None;
        }
        let mut bytes = [0; BYTES];
        for (byte, digits) in bytes.iter_mut().zip(token.as_bytes().chunks(2)) {
            let value = |digit: u8| char::from(digit).to_digit(16);
            let both = value(digits[0])? << 4 | value(digits[1])?;
            *byte = u8::try_from(both).ok()?;
        }
        Some(Self(bytes))
    }

    /// As it is sent.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}
