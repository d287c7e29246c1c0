//! Files beneath a root, opened by the kernel's own rule (`openat2`, `RESOLVE_BENEATH`): no
//! `..`, absolute link or race leads out. Blocking; call it off the async threads.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::{Entry, EntryKind, SandboxError};

/// Longest path, bytes (that of the kernel).
const PATH_BYTES_MAX: usize = 4_095;
/// The kernel asks to repeat a resolution that raced with a rename.
const RACES_MAX: usize = 16;

/// An open root folder.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens an existing folder as a root.
    ///
    /// # Errors
    /// [`SandboxError::Failed`] when it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, SandboxError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
            .map(Self)
            .map_err(|e| SandboxError::io(format!("cannot open {}", path.display()), &e.into()))
    }

    /// Whether the folder at `path` is still this one.
    pub fn is_at(&self, path: &Path) -> bool {
        let there = rustix::fs::lstat(path);
        let ours = rustix::fs::fstat(&self.0);
        matches!((there, ours), (Ok(a), Ok(b)) if (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    }

    /// Reads a whole regular file.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn read(&self, path: &str, bytes_max: usize) -> Result<Vec<u8>, SandboxError> {
        // Without NONBLOCK a pipe left by a command would hold this thread for ever.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.resolve(path, flags, Mode::empty())?);
        let about = file.metadata().map_err(|e| failed(path, &e))?;
        if !about.is_file() {
            return Err(SandboxError::PathInvalid(path.to_owned()));
        }
        let mut bytes = Vec::new();
        let limit = u64::try_from(bytes_max)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        file.take(limit)
            .read_to_end(&mut bytes)
            .map_err(|e| failed(path, &e))?;
        if bytes.len() > bytes_max {
            return Err(SandboxError::TooLarge {
                path: path.to_owned(),
                bytes_max,
            });
        }
        Ok(bytes)
    }

    /// Writes a whole file; makes the folders on the way.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<(), SandboxError> {
        check(path)?;
        if let Some((folders, _)) = path.rsplit_once('/') {
            self.make_folders(folders)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.resolve(path, flags, Mode::from_raw_mode(0o644))?;
        let mut file = File::from(fd);
        let about = file.metadata().map_err(|e| failed(path, &e))?;
        if !about.is_file() {
            return Err(SandboxError::PathInvalid(path.to_owned()));
        }
        // Cut only now: a device or pipe behind the name was refused untouched.
        file.set_len(0)
            .and_then(|()| file.write_all(bytes))
            .map_err(|e| failed(path, &e))
    }

    /// Lists a folder, sorted by name.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn list(&self, path: &str, entries_max: usize) -> Result<Vec<Entry>, SandboxError> {
        let folder = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let dir = Dir::read_from(folder.as_fd()).map_err(|e| failed(path, &e.into()))?;
        let mut entries = Vec::new();
        for entry in dir {
            let entry = entry.map_err(|e| failed(path, &e.into()))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if entries.len() >= entries_max {
                let text = format!("{path:?} holds more than {entries_max} names");
                return Err(SandboxError::Failed(text));
            }
            // Gone since the name was read: not there.
            let Ok(about) =
                rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            let (kind, bytes) = match FileType::from_raw_mode(about.st_mode) {
                FileType::RegularFile => {
                    (EntryKind::File, u64::try_from(about.st_size).unwrap_or(0))
                }
                FileType::Directory => (EntryKind::Folder, 0),
                FileType::Symlink => (EntryKind::Link, 0),
                _ => (EntryKind::Other, 0),
            };
            entries.push(Entry {
                name: name.to_vec(),
                kind,
                bytes,
            });
        }
        entries.sort();
        Ok(entries)
    }

    /// Whether `path` is a folder in here.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn folder(&self, path: &str) -> Result<(), SandboxError> {
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
            .map(drop)
    }

    fn make_folders(&self, path: &str) -> Result<(), SandboxError> {
        let mut upto = String::new();
        for part in path.split('/').filter(|p| !p.is_empty()) {
            let parent = if upto.is_empty() {
                ".".to_owned()
            } else {
                upto.clone()
            };
            if !upto.is_empty() {
                upto.push('/');
            }
            upto.push_str(part);
            if matches!(part, "." | "..") || self.folder(&upto).is_ok() {
                continue;
            }
            let parent = self.resolve(&parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            match rustix::fs::mkdirat(&parent, part, Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                // A link that leads out, or a file: the next step refuses it.
                Err(Errno::EXIST) => self.folder(&upto)?,
                Err(e) => return Err(refusal(path, e)),
            }
        }
        Ok(())
    }

    fn resolve(&self, path: &str, flags: OFlags, mode: Mode) -> Result<OwnedFd, SandboxError> {
        check(path)?;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..RACES_MAX {
            match rustix::fs::openat2(&self.0, path, flags | OFlags::CLOEXEC, mode, how) {
                Ok(fd) => return Ok(fd),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(refusal(path, e)),
            }
        }
        Err(SandboxError::Failed(format!("{path:?} keeps changing")))
    }
}

fn check(path: &str) -> Result<(), SandboxError> {
    let bad = path.is_empty()
        || path.len() > PATH_BYTES_MAX
        || path.starts_with('/')
        || path.contains('\0')
        || leaves(path);
    if bad {
        Err(SandboxError::PathInvalid(path.to_owned()))
    } else {
        Ok(())
    }
}

/// Whether a path leads out by its text alone, whatever is there.
fn leaves(path: &str) -> bool {
    let mut depth = 0_usize;
    path.split('/').any(|part| match part {
        "" | "." => false,
        ".." => match depth.checked_sub(1) {
            Some(less) => {
                depth = less;
                false
            }
            None => true,
        },
        _ => {
            depth += 1;
            false
        }
    })
}

fn refusal(path: &str, errno: Errno) -> SandboxError {
    match errno {
        Errno::NOENT => SandboxError::NotFound(path.to_owned()),
        Errno::XDEV
        | Errno::LOOP
        | Errno::NOTDIR
        | Errno::ISDIR
        | Errno::INVAL
        | Errno::NAMETOOLONG
        | Errno::NXIO => SandboxError::PathInvalid(path.to_owned()),
        other => failed(path, &other.into()),
    }
}

fn failed(path: &str, error: &std::io::Error) -> SandboxError {
    SandboxError::io(format!("{path:?}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn root() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("root");
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        let root = Root::open(&inside).unwrap();
        (dir, root)
    }

    #[test]
    fn files_round_trip_with_odd_names_and_bytes() {
        let (_dir, root) = root();
        for name in [
            "a",
            "x/y/z.txt",
            "a b\n\"'$(x)",
            "ä/日本",
            "-rf",
            "...",
            "x/../up",
            "./dot",
        ] {
            let bytes = [0, 255, 10, 13, 128];
            root.write(name, &bytes).unwrap();
            assert_eq!(root.read(name, 5).unwrap(), bytes, "{name:?}");
        }
        root.write("a", b"shorter").unwrap();
        assert_eq!(root.read("a", 100).unwrap(), b"shorter");
        assert!(matches!(
            root.read("a", 6),
            Err(SandboxError::TooLarge { .. })
        ));
    }

    #[test]
    fn nothing_leads_out() {
        let (dir, root) = root();
        let inside = dir.path().join("root");
        symlink("/etc", inside.join("etc")).unwrap();
        symlink("../secret", inside.join("up")).unwrap();
        symlink(dir.path().join("secret"), inside.join("absolute")).unwrap();
        symlink("loop", inside.join("loop")).unwrap();
        symlink("..", inside.join("parent")).unwrap();
        symlink("/proc/self/root", inside.join("magic")).unwrap();
        let paths = [
            "etc/passwd",
            "up",
            "absolute",
            "loop",
            "parent/secret",
            "../secret",
            "/etc/passwd",
            "a/../../secret",
            "",
            "a\0b",
            "etc/new/file",
            "parent/new/file",
            "magic/etc/passwd",
        ];
        for path in paths {
            let read = root.read(path, 10).unwrap_err();
            assert_eq!(read.code(), "sandbox.path_invalid", "{path:?}: {read}");
            let wrote = root.write(path, b"overwritten").unwrap_err();
            assert_eq!(wrote.code(), "sandbox.path_invalid", "{path:?}: {wrote}");
        }
        assert_eq!(
            root.list("parent", 9).unwrap_err().code(),
            "sandbox.path_invalid"
        );
        assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"secret");
    }

    #[test]
    fn links_that_stay_inside_are_followed() {
        let (dir, root) = root();
        root.write("real/file", b"x").unwrap();
        symlink("real", dir.path().join("root/link")).unwrap();
        assert_eq!(root.read("link/file", 9).unwrap(), b"x");
    }

    #[test]
    fn only_regular_files_are_files() {
        let (dir, root) = root();
        let mode = Mode::from_raw_mode(0o644);
        let fifo = dir.path().join("root/fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        root.write("folder/x", b"x").unwrap();
        for path in ["fifo", "folder", "folder/x/y", "."] {
            assert_eq!(
                root.read(path, 9).unwrap_err().code(),
                "sandbox.path_invalid",
                "{path}"
            );
            assert_eq!(
                root.write(path, b"").unwrap_err().code(),
                "sandbox.path_invalid",
                "{path}"
            );
        }
    }

    #[test]
    fn a_list_is_sorted_and_bounded() {
        let (dir, root) = root();
        for name in ["b", "a", "c/d"] {
            root.write(name, b"12").unwrap();
        }
        symlink("/etc/passwd", dir.path().join("root/link")).unwrap();
        let got: Vec<_> = root
            .list(".", 9)
            .unwrap()
            .into_iter()
            .map(|e| (e.name, e.kind, e.bytes))
            .collect();
        let want = vec![
            (b"a".to_vec(), EntryKind::File, 2),
            (b"b".to_vec(), EntryKind::File, 2),
            (b"c".to_vec(), EntryKind::Folder, 0),
            (b"link".to_vec(), EntryKind::Link, 0),
        ];
        assert_eq!(got, want);
        assert!(root.list(".", 3).is_err());
    }
}
