//! Outputs of a size that a model can take in, with a note of what was cut.

/// Longest text that a tool answers, bytes, notes not counted.
pub(super) const TEXT_BYTES_MAX: usize = 64 << 10;
/// Where an output is cut, so much of its beginning stays, bytes. The end of an output says more.
const HEAD_BYTES: usize = 16 << 10;
/// Bytes that are looked at to tell text from other data.
const LOOK_BYTES: usize = 8 << 10;

/// A text of at most [`TEXT_BYTES_MAX`] bytes: what is too much is cut out of its middle.
pub(super) fn cut_middle(text: String) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text;
    }
    let boundary = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=HEAD_BYTES).rev().find(boundary).unwrap_or(0);
    let from = text.len() - (TEXT_BYTES_MAX - HEAD_BYTES);
    let tail = (from..text.len()).find(boundary).unwrap_or(text.len());
    let cut = tail - head;
    let (first, last) = (
        text.get(..head).unwrap_or_default(),
        text.get(tail..).unwrap_or_default(),
    );
    format!("{first}\n[{cut} bytes were cut out here]\n{last}")
}

/// A line of at most `chars_max` characters, with a note of the rest.
pub(super) fn cut_line(line: &str, chars_max: usize) -> String {
    match line.char_indices().nth(chars_max) {
        None => line.to_owned(),
        Some((at, _)) => {
            let (kept, rest) = line.split_at(at);
            format!("{kept} [{} more bytes in this line]", rest.len())
        }
    }
}

/// Whether bytes are something else than text.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(LOOK_BYTES).any(|b| *b == 0)
}

/// What a model is told of bytes that are no text.
pub(super) fn binary_note(what: &str, bytes: &[u8]) -> String {
    let first: Vec<String> = bytes.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!(
        "{what} is binary: {} bytes that begin with {}",
        bytes.len(),
        first.join(" ")
    )
}

/// Lines that are collected until there are too many bytes.
#[derive(Debug, Default)]
pub(super) struct Lines {
    text: String,
}

impl Lines {
    /// Adds a line, or says that there is no room for it.
    pub(super) fn add(&mut self, line: &str) -> bool {
        let room = self.text.len() + line.len() < TEXT_BYTES_MAX;
        if room {
            self.text.push_str(line);
            self.text.push('\n');
        }
        room
    }

    /// All lines, and a note after them.
    pub(super) fn with_note(mut self, note: &str) -> String {
        if !note.is_empty() {
            self.text.push_str(&format!("[{note}]\n"));
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_cut_between_characters() {
        let whole = "ä".repeat(TEXT_BYTES_MAX / 2);
        assert_eq!(cut_middle(whole.clone()), whole);
        let long = format!("a{}{}z", "ä".repeat(TEXT_BYTES_MAX), "€".repeat(9));
        let cut = cut_middle(long.clone());
        assert!(
            cut.starts_with("aä") && cut.ends_with("€z"),
            "{}",
            cut.len()
        );
        let note: usize = cut
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(' '))
            .map(|(n, _)| n.parse().unwrap())
            .unwrap();
        let kept = cut.replace(&format!("\n[{note} bytes were cut out here]\n"), "");
        assert_eq!(kept.len() + note, long.len());
        assert!(kept.len() <= TEXT_BYTES_MAX);
    }

    #[test]
    fn long_lines_say_what_is_missing() {
        assert_eq!(cut_line("äöü", 3), "äöü");
        assert_eq!(cut_line("äöüx", 3), "äöü [1 more bytes in this line]");
    }

    #[test]
    fn bytes_with_a_nul_are_binary() {
        assert!(is_binary(b"\x7fELF\0"));
        assert!(!is_binary("ä\n".as_bytes()) && !is_binary(b""));
        assert_eq!(
            binary_note("`x`", &[0, 255]),
            "`x` is binary: 2 bytes that begin with 00 ff"
        );
    }
}
