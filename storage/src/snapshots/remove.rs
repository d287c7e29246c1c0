//! Removing trees as restores and programs make them: of any depth, and with directories that may
//! not be written to.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::descent::Descent;
use super::files;

const LISTING_BYTES: usize = 64 << 10;

/// A directory that is being emptied.
struct Frame {
    name: Box<[u8]>,
    names: std::vec::IntoIter<Box<[u8]>>,
}

struct Removal {
    descent: Descent,
    frames: Vec<Frame>,
    listing: Vec<MaybeUninit<u8>>,
}

/// Removes a directory and all that is in it. Directories of this process's user are made writable
/// where they are not; links are not followed.
///
/// # Errors
///
/// The first that happened.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let Some(name) = path.file_name() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = path.parent().map_or(OsStr::new(""), Path::as_os_str);
    let above = if above.is_empty() {
        OsStr::new(".")
    } else {
        above
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = rustix::fs::open(above, flags, Mode::empty())?;
    let mut removal = Removal {
        descent: Descent::new(above),
        frames: Vec::new(),
        listing: vec![MaybeUninit::uninit(); LISTING_BYTES],
    };
    removal.begin(name.as_bytes())?;
    Ok(removal.everything()?)
}

impl Removal {
    fn begin(&mut self, name: &[u8]) -> Result<(), Errno> {
        let above = self.descent.here()?;
        let fd = open(&above, name)?;
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut list = RawDir::new(&fd, &mut self.listing);
        while let Some(entry) = list.next() {
            let name = entry?.file_name().to_bytes().into();
            names.push(name);
        }
        names.retain(|name| !matches!(&**name, b"." | b".."));
        self.descent.enter(name, fd)?;
        self.frames.push(Frame {
            name: name.into(),
            names: names.into_iter(),
        });
        Ok(())
    }

    fn everything(&mut self) -> Result<(), Errno> {
        while let Some(frame) = self.frames.last_mut() {
            let gone = if let Some(name) = frame.names.next() {
                match rustix::fs::unlinkat(self.descent.here()?, &*name, AtFlags::empty()) {
                    Err(Errno::ISDIR | Errno::PERM) => self.begin(&name),
                    other => other,
                }
            } else {
                let name = std::mem::take(&mut frame.name);
                self.frames.pop();
                self.descent.leave();
                rustix::fs::unlinkat(self.descent.here()?, &*name, AtFlags::REMOVEDIR)
            };
            match gone {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Opens a directory whose entries can be removed then.
fn open(above: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let place = files::place(above, name)?;
    let stat = files::stat(&place)?;
    let is_dir = stat.kind() == rustix::fs::FileType::Directory;
    if is_dir && stat.mode & 0o700 != 0o700 && files::is_ours(&stat) {
        files::set_place_mode(&place, 0o700)?;
    }
    files::open_dir(above, name)
}
