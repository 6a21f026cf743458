//! A short name of many bytes.
//!
//! Owns FNV-1a, which is the same on every machine and in every version. It tells apart what nobody
//! makes alike on purpose; it is no signature.

/// The digest of these bytes.
pub(crate) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xCBF2_9CE4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}
