//! Files by descriptor: nothing here follows a symbolic link or resolves more than one name.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::Errno;

use super::tree::{MODE_MASK, Time};

/// What is looked at of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stat {
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) size: u64,
    /// With the type.
    pub(super) mode: u16,
    pub(super) links: u32,
    pub(super) uid: u32,
    /// Bytes on the disk.
    pub(super) allocated: u64,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
}

impl Stat {
    pub(super) fn is_same_file_state(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.size, self.mode) == (other.dev, other.ino, other.size, other.mode)
            && (self.mtime, self.ctime) == (other.mtime, other.ctime)
    }

    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode.into())
    }

    /// Permission bits that are kept.
    pub(super) fn permissions(&self) -> u16 {
        self.mode & MODE_MASK
    }
}

fn statx(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Stat, Errno> {
    let x = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)?;
    let time = |t: rustix::fs::StatxTimestamp| Time {
        s: t.tv_sec,
        ns: t.tv_nsec,
    };
    Ok(Stat {
        dev: u64::from(x.stx_dev_major) << 32 | u64::from(x.stx_dev_minor),
        ino: x.stx_ino,
        size: x.stx_size,
        mode: x.stx_mode,
        links: x.stx_nlink,
        uid: x.stx_uid,
        allocated: x.stx_blocks.saturating_mul(512),
        mtime: time(x.stx_mtime),
        ctime: time(x.stx_ctime),
    })
}

/// Of an entry itself, be it a link.
pub(super) fn stat_at(dir: impl AsFd, name: &[u8]) -> Result<Stat, Errno> {
    statx(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn stat(file: impl AsFd) -> Result<Stat, Errno> {
    statx(file.as_fd(), b"", AtFlags::EMPTY_PATH)
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// A directory by its name in another.
pub(super) fn open_dir(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())
}

/// A directory by a path that the caller vouches for.
pub(super) fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIR_FLAGS, Mode::empty())
}

/// A regular file for reading. Does not wait at a FIFO that took its place.
pub(super) fn open_file(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, Mode::empty())
}

/// A file that is not there yet, for writing.
pub(super) fn create_file(dir: impl AsFd, name: &[u8], mode: u16) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(mode.into());
    rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, mode)
}

fn times(mtime: Time) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: mtime.s,
            tv_nsec: mtime.ns.into(),
        },
    }
}

pub(super) fn set_mtime(file: impl AsFd, mtime: Time) -> Result<(), Errno> {
    rustix::fs::futimens(file, &times(mtime))
}

pub(super) fn set_link_mtime(dir: impl AsFd, name: &[u8], mtime: Time) -> Result<(), Errno> {
    rustix::fs::utimensat(dir, name, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)
}

pub(super) fn set_mode(file: impl AsFd, mode: u16) -> Result<(), Errno> {
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode.into()))
}

/// Names an entry, or what it is, without reading it or following a link.
pub(super) fn place(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Sets the mode of exactly what [`place`] named: a change by name would follow a link that took
/// the name meanwhile.
pub(super) fn set_place_mode(place: &OwnedFd, mode: u16) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    rustix::fs::chmod(path, Mode::from_raw_mode(mode.into()))
}

/// Whether it belongs to the user of this process, who may then set its mode.
pub(super) fn is_ours(stat: &Stat) -> bool {
    stat.uid == rustix::process::geteuid().as_raw()
}

/// A file of the store. What is no regular file is an error, and not waited for: the name may have
/// been given to a FIFO.
pub(super) fn open_own(path: &Path, extra: OFlags) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags | extra, Mode::from_raw_mode(0o644));
    let file = File::from(fd.map_err(|e| match e {
        // A link; a socket, or a FIFO that is opened for writing.
        Errno::LOOP | Errno::NXIO => no_file(),
        other => other.into(),
    })?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(no_file()),
    }
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no regular file")
}

/// What the clock of the file system of `file` says, by touching it.
pub(super) fn tick(file: impl AsFd) -> io::Result<Time> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let now = Timestamps {
        last_access: now,
        last_modification: now,
    };
    rustix::fs::futimens(file.as_fd(), &now)?;
    Ok(stat(file)?.ctime)
}
