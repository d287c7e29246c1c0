//! Entries that do not hold still while they are read: taken as they are found.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::chunks::{Encoder, SEGMENT_BYTES};
use super::error::{SnapshotError, failed, in_tree, is_elsewhere};
use super::files::{self, Stat};
use super::read::{self, Sink};
use super::tree::Piece;
use super::walk::{At, SkipReason, Walked, What};

/// How often a name is opened that is something else each time.
const TRIES_MAX: usize = 8;

/// What a file was when it was read.
pub(super) enum Content {
    File {
        stat: Stat,
        pieces: Vec<Piece>,
        /// Whether nothing changed between the beginning and the end of the reading.
        is_steady: bool,
    },
    /// It is no file any more.
    Changed(Other),
}

/// What came in the place of a file.
pub(super) enum Other {
    Entry(What),
    Skip(SkipReason),
}

impl Content {
    pub(super) fn file(stat: Stat, pieces: Vec<Piece>, is_steady: bool) -> Self {
        Self::File {
            stat,
            pieces,
            is_steady,
        }
    }
}

/// What has the name of a file now, without its content; `None` when it was removed.
pub(super) fn look_again(walked: &Walked, at: At) -> Result<Option<Content>, SnapshotError> {
    let name = read::name(walked, at);
    let dir = match walked.open_dir(at.0) {
        Err(error) if error.is_missing() => return Ok(None),
        other => other?,
    };
    let stat = match files::stat_at(&dir, name) {
        Err(Errno::NOENT) => return Ok(None),
        other => other.map_err(|e| in_tree("stat", walked.path(at.0, name))(e))?,
    };
    let other = match stat.kind() {
        FileType::RegularFile => return Ok(Some(Content::file(stat, Vec::new(), false))),
        FileType::Symlink => match rustix::fs::readlinkat(&dir, name, Vec::new()) {
            Ok(target) => Other::Entry(What::Symlink {
                mtime: stat.mtime,
                target: target.into_bytes().into(),
            }),
            Err(e) if is_elsewhere(e) => Other::Skip(SkipReason::Changed),
            Err(e) => return Err(in_tree("read", walked.path(at.0, name))(e)),
        },
        FileType::Directory => Other::Skip(SkipReason::Changed),
        _ => Other::Skip(SkipReason::Special),
    };
    Ok(Some(Content::Changed(other)))
}

/// Reads files one after the other, whatever happens to them meanwhile.
pub(super) struct Reader<'a, 's> {
    walked: &'a Walked,
    sink: &'a Sink<'s>,
    encoder: Encoder,
    buffer: Vec<u8>,
}

impl<'a, 's> Reader<'a, 's> {
    pub(super) fn new(
        walked: &'a Walked,
        sink: &'a Sink<'s>,
        level: i32,
    ) -> Result<Self, SnapshotError> {
        Ok(Self {
            walked,
            sink,
            encoder: Encoder::new(level)?,
            buffer: Vec::new(),
        })
    }

    /// Reads a file once, up to the size that it has at the beginning. `None` when it was removed.
    pub(super) fn read(&mut self, at: At) -> Result<Option<Content>, SnapshotError> {
        for _ in 0..TRIES_MAX {
            if let Some(fd) = read::open(self.walked, None, at)? {
                return self.content(File::from(fd), at).map(Some);
            }
            match look_again(self.walked, at)? {
                Some(Content::File { .. }) => {}
                other => return Ok(other),
            }
        }
        Ok(Some(Content::Changed(Other::Skip(SkipReason::Changed))))
    }

    fn content(&mut self, file: File, at: At) -> Result<Content, SnapshotError> {
        let walked = self.walked;
        let path = || walked.path(at.0, read::name(walked, at));
        let mut stat = files::stat(&file).map_err(|e| failed("stat", &path())(e))?;
        if stat.kind() != FileType::RegularFile {
            return Ok(Content::Changed(Other::Skip(SkipReason::Special)));
        }
        let data = read::ranges(&file, &stat, 0, stat.size);
        let data = data.map_err(|e| failed("seek", &path())(e))?;
        let mut pieces = Vec::new();
        for (mut start, end) in data {
            while start < end {
                let next = (start / SEGMENT_BYTES + 1) * SEGMENT_BYTES;
                // At most a segment.
                let wanted = (end.min(next) - start) as usize;
                let got = self.fill(&file, start, wanted);
                let got = got.map_err(|e| failed("read", &path())(e))?;
                let bytes = self.buffer.get(..got).unwrap_or_default();
                let cut = self.sink.cut(bytes, start, stat.size, &mut self.encoder);
                pieces.extend(cut?);
                start += got as u64;
                if got < wanted {
                    // It was cut off meanwhile: it ends here.
                    stat.size = start;
                    return Ok(Content::file(stat, pieces, false));
                }
            }
        }
        Ok(Content::file(stat, pieces, false))
    }

    /// Reads so many bytes, or up to the end of the file; how many there were.
    fn fill(&mut self, file: &File, start: u64, wanted: usize) -> std::io::Result<usize> {
        self.buffer.resize(wanted, 0);
        let mut got = 0;
        while let Some(rest) = self.buffer.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, start + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(got)
    }
}
