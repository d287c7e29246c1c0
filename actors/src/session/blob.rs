//! Bytes that a harness keeps with a checkpoint, to get its own state back.
//!
//! They are a row beside the log, never part of it: the log has their length and digest. A claim
//! hands them out only if they are what was said of them.

use super::payload::ResumeFrom;

/// Most bytes of one blob.
pub const BLOB_BYTES_MAX: usize = 1 << 20;

/// What the log says of these bytes; `schema` is the harness's own word for their form.
pub fn describe(bytes: &[u8], schema: Option<String>) -> ResumeFrom {
    ResumeFrom::Blob {
        size: bytes.len() as u64,
        digest: digest(bytes),
        schema,
    }
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// Whether these are the bytes that were described.
///
/// # Errors
/// How they differ.
pub fn verify(described: &ResumeFrom, bytes: Option<&[u8]>) -> Result<(), String> {
    let ResumeFrom::Blob {
        size, digest: said, ..
    } = described
    else {
        return Ok(());
    };
    let Some(bytes) = bytes else {
        return Err("its resume blob is gone".to_owned());
    };
    if bytes.len() as u64 != *size {
        let len = bytes.len();
        return Err(format!("its resume blob has {len} bytes instead of {size}"));
    }
    if digest(bytes) != *said {
        return Err("its resume blob has another digest".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_bytes_verify() {
        let said = describe(b"state", None);
        assert_eq!(verify(&said, Some(b"state")), Ok(()));
        for other in [Some(&b"State"[..]), Some(b"stat"), Some(b""), None] {
            assert!(verify(&said, other).is_err(), "{other:?}");
        }
        assert_eq!(verify(&ResumeFrom::RebuildFromLog, None), Ok(()));
    }
}
