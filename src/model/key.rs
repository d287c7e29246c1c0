//! Keys of providers: shown by nothing that prints.

use std::fmt;
use std::io::Read;
use std::path::Path;

/// Longest file with a key, bytes.
const FILE_BYTES_MAX: u64 = 16 << 10;
/// A shorter key is taken out of no text: it would stand in half of all words.
const REDACTED_BYTES_MIN: usize = 6;

/// A provider's key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// A key, if this is one: a line of visible text.
    pub(super) fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self(text.to_owned()))
    }

    /// The key in a file.
    pub(super) fn read(path: &Path) -> std::io::Result<Self> {
        let mut text = String::new();
        std::fs::File::open(path)?
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)?;
        Self::new(&text).ok_or_else(|| {
            let what = "the file does not hold one line of text";
            std::io::Error::new(std::io::ErrorKind::InvalidData, what)
        })
    }

    /// The key itself, for the header alone.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }

    /// A provider's words without the key: some repeat what they were sent.
    pub(super) fn redact(&self, text: &str) -> String {
        if self.0.len() < REDACTED_BYTES_MIN {
            return text.to_owned();
        }
        text.replace(&self.0, "[key]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_line_and_is_not_shown() {
        let key = Key::new(" sk-secret-1\n").expect("a key");
        assert_eq!(key.reveal(), "sk-secret-1");
        assert!(!format!("{key:?}").contains("secret"));
        assert_eq!(key.redact("bad key sk-secret-1!"), "bad key [key]!");
        for none in ["", "  \n", "a b", "a\nb", "a\u{e9}", "a\0b"] {
            assert_eq!(Key::new(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("key");
        assert!(Key::read(&path).is_err());
        std::fs::write(&path, "two\nlines\n").expect("write");
        assert!(Key::read(&path).is_err());
        std::fs::write(&path, "sk-1\n").expect("write");
        assert_eq!(Key::read(&path).expect("a key").reveal(), "sk-1");
    }
}
