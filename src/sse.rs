//! Reading a stream of server-sent events, piece by piece.

/// Most bytes of one frame; a longer one ends the connection.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Frame {
    /// `id:`, when the frame has one.
    pub(crate) id: Option<String>,
    /// `event:`, or empty.
    pub(crate) event: String,
    /// `data:`; several lines are joined by newlines.
    pub(crate) data: String,
}

/// Takes bytes as they come and gives whole frames.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    /// So many of its first bytes are known to hold no end of a line.
    scanned: usize,
    frame: Frame,
    has_data: bool,
}

/// The stream is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream holds a frame that is too long or no text")]
pub(crate) struct Malformed;

impl Parser {
    /// The frames that are whole now. Comments are dropped.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Frame>, Malformed> {
        self.buffer.extend_from_slice(bytes);
        let mut out = Vec::new();
        let (mut start, mut from) = (0, self.scanned);
        while let Some(rest) = self.buffer.get(from..)
            && let Some(len) = rest.iter().position(|b| *b == b'\n')
        {
            let end = from + len;
            let line = self.buffer.get(start..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = std::str::from_utf8(line).map_err(|_| Malformed)?;
            if line.is_empty() {
                let frame = std::mem::take(&mut self.frame);
                if std::mem::take(&mut self.has_data) || !frame.event.is_empty() {
                    out.push(frame);
                }
            } else {
                self.has_data |= field(&mut self.frame, line, self.has_data);
            }
            start = end + 1;
            from = start;
        }
        self.buffer.drain(..start);
        self.scanned = self.buffer.len();
        if self.buffer.len() + self.frame.data.len() > FRAME_BYTES_MAX {
            return Err(Malformed);
        }
        Ok(out)
    }
}

/// Takes one line into the frame; whether it was data.
fn field(frame: &mut Frame, line: &str, more: bool) -> bool {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let value = value.strip_prefix(' ').unwrap_or(value);
    match name {
        "id" => frame.id = Some(value.to_owned()),
        "event" => value.clone_into(&mut frame.event),
        "data" => {
            if more {
                frame.data.push('\n');
            }
            frame.data.push_str(value);
            return true;
        }
        // An empty name is a comment; anything else is for later versions.
        _ => {}
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\nid: 7\nevent: agent.message\ndata: {\"a\":\ndata: 1}\r\n\r\n\
                          event: end\ndata: \n\n: beat\n\n";

    #[test]
    fn frames_do_not_depend_on_how_the_bytes_arrive() {
        let whole = Parser::default().push(STREAM.as_bytes()).unwrap();
        assert_eq!(whole.len(), 2);
        assert_eq!(whole[0].id.as_deref(), Some("7"));
        assert_eq!(whole[0].data, "{\"a\":\n1}");
        assert_eq!(whole[1].event, "end");
        for size in 1..20 {
            let mut parser = Parser::default();
            let mut got = Vec::new();
            for piece in STREAM.as_bytes().chunks(size) {
                got.extend(parser.push(piece).unwrap());
            }
            assert_eq!(got, whole, "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..20).any(|_| parser.push(&piece) == Err(Malformed)));
    }
}
