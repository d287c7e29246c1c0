//! CRC-32C as the engine stores it, so that its files can be checked without it.

/// The CRC of parts put together, masked as the engine does: a CRC of bytes that contain CRCs
/// would be weak.
pub(crate) fn masked(parts: &[&[u8]]) -> u32 {
    let crc = parts
        .iter()
        .fold(0, |crc, part| crc32c::crc32c_append(crc, part));
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let plain = |parts: &[&[u8]]| masked(parts).wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(plain(&[b"123456789"]), 0xe306_9283);
        assert_eq!(plain(&[b"1234", b"", b"56789"]), 0xe306_9283);
        assert_eq!(plain(&[]), 0);
    }
}
