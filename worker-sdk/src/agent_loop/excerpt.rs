//! The beginning and the end of a text, in whole characters.

/// The longest beginning of at most so many bytes.
pub(crate) fn head(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The longest end of at most so many bytes.
pub(crate) fn tail(text: &str, bytes_max: usize) -> &str {
    let mut begin = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(begin) {
        begin += 1;
    }
    &text[begin..]
}
