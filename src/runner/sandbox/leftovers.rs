//! Processes that outlive their command or their server, found by what they carry.
//!
//! A process belongs to a sandbox when its environment has the sandbox's random mark, or when it
//! is in a process group that was noted with the start time of its leader. A process id that
//! was given to somebody else meanwhile has neither, so nothing innocent is ever hit.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_actors::env::Door;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::bwrap::MARK;

/// Most of an environment that is looked at, bytes.
const ENVIRON_BYTES_MAX: u64 = 1 << 20;
/// Rounds of looking and killing; each ends what the one before had still forked.
const ROUNDS_MAX: usize = 50;
const ROUND_PAUSE: Duration = Duration::from_millis(5);

/// Ends every process whose mark starts with `mark`, and waits until none is left (bounded).
pub async fn kill_marked(door: &Door, mark: &str) {
    let needle = format!("{MARK}={mark}").into_bytes();
    for _ in 0..ROUNDS_MAX {
        let needle = needle.clone();
        let found = tokio::task::spawn_blocking(move || kill_round(&needle)).await;
        match found {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                door.clock
                    .sleep_until(door.clock.mono() + ROUND_PAUSE)
                    .await
            }
        }
    }
    tracing::warn!(mark, "processes of a sandbox do not end");
}

/// Kills all that carry the needle; how many there were.
fn kill_round(needle: &[u8]) -> usize {
    let own = rustix::process::getpid();
    let mut found = 0;
    for pid in processes().filter(|p| *p != own) {
        // The handle first: if the number changes hands after this, the signal goes nowhere.
        let Ok(handle) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        if environ_has(pid, needle) {
            found += 1;
            let _ = rustix::process::pidfd_send_signal(&handle, Signal::KILL);
        }
    }
    found
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| Pid::from_raw(e.file_name().to_str()?.parse().ok()?))
}

fn environ_has(pid: Pid, needle: &[u8]) -> bool {
    let path = format!("/proc/{}/environ", pid.as_raw_nonzero());
    let Ok(file) = std::fs::File::open(path) else {
        return false;
    };
    let mut environ = Vec::new();
    if file
        .take(ENVIRON_BYTES_MAX)
        .read_to_end(&mut environ)
        .is_err()
    {
        return false;
    }
    environ
        .split(|b| *b == 0)
        .any(|variable| variable.starts_with(needle))
}

/// Notes a process group before anything can be lost: `group start boot`, a line each.
pub fn note_group(file: &Path, leader: Pid) -> std::io::Result<()> {
    use std::io::Write as _;
    let Some(start) = start_time(leader) else {
        return Ok(());
    };
    let mut notes = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)?;
    writeln!(notes, "{} {start} {}", leader.as_raw_nonzero(), boot_id())
}

/// Kills the noted groups whose leaders are still the same processes.
pub fn kill_noted(file: &Path) {
    let Ok(notes) = std::fs::read_to_string(file) else {
        return;
    };
    let boot = boot_id();
    for line in notes.lines() {
        let mut words = line.split(' ');
        let (Some(group), Some(start), Some(noted_boot)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Some(group) = group.parse().ok().and_then(Pid::from_raw) else {
            continue;
        };
        let same = noted_boot == boot && start_time(group).is_some_and(|s| s.to_string() == start);
        if same {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
}

/// When a process started, in ticks since the machine did.
fn start_time(pid: Pid) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name, in parentheses, may hold anything; the 22nd field is the 20th after it.
    let (_, after) = stat.rsplit_once(')')?;
    after.split_whitespace().nth(19)?.parse().ok()
}

fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// Ends and removes what earlier attempts left under `root`.
pub async fn clear(door: &Door, root: &Path, names: Vec<String>) {
    for name in names {
        end_processes(door, root, &name).await;
        remove(door, root.join(&name)).await;
    }
}

/// Ends what an earlier process left running in one sandbox.
pub async fn end_processes(door: &Door, root: &Path, name: &str) {
    kill_noted(&root.join(name).join(super::dir::GROUPS));
    kill_marked(door, &format!("{name}.")).await;
}

/// Removes a folder with all it holds. What a dying process still adds is removed in a later
/// round.
pub async fn remove(door: &Door, place: PathBuf) {
    for _ in 0..ROUNDS_MAX {
        let target = place.clone();
        let gone = tokio::task::spawn_blocking(move || remove_now(&target)).await;
        match gone {
            Ok(Ok(())) | Err(_) => return,
            Ok(Err(_)) => {
                door.clock
                    .sleep_until(door.clock.mono() + ROUND_PAUSE)
                    .await
            }
        }
    }
    tracing::warn!(folder = %place.display(), "a sandbox folder cannot be removed");
}

fn remove_now(place: &Path) -> std::io::Result<()> {
    match longhaul_storage::snapshots::remove_tree(place) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
