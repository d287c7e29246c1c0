//! How a command is wrapped: isolated by bubblewrap, or only limited.
//!
//! Isolated means: own process, network, user, IPC and host-name namespaces; of the host only
//! `/usr`, its kin and a few files of `/etc`, read-only; the sandbox at `/work`, a private
//! `/tmp`; no capabilities, no controlling terminal; all of it ends with the command.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::runner::settings::RunnerConfig;

/// Where the sandbox is seen by isolated commands.
pub const WORK: &str = "/work";
/// Size of the shared-memory folder of an isolated command, bytes.
const SHM_BYTES: &str = "67108864";
/// The variable that marks every process of a sandbox, whatever became of its parents.
pub const MARK: &str = "LONGHAUL_SANDBOX";

/// Files and folders of `/etc` that programs need to run at all.
const ETC: &[&str] = &[
    "alternatives",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "timezone",
];
/// What they need to reach the network.
const ETC_NETWORK: &[&str] = &["ca-certificates", "hosts", "pki", "resolv.conf", "ssl"];

/// How commands are kept apart from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// By the bubblewrap at this path.
    Bwrap(PathBuf),
    /// Not at all.
    Open,
}

/// One process to start in a sandbox.
#[derive(Debug)]
pub struct View<'a> {
    /// The sandbox's root on the host.
    pub work: &'a Path,
    /// Its folder for temporary files on the host.
    pub tmp: &'a Path,
    /// Where to start, relative to the root.
    pub cwd: &'a str,
    /// Value of [`MARK`].
    pub mark: &'a str,
    /// Whether it reaches the network.
    pub network: bool,
    /// Further environment.
    pub env: &'a [(String, String)],
}

/// The first bubblewrap on the `PATH`.
pub fn find_bwrap() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join("bwrap"))
        .find(|p| p.is_file())
}

/// The shell for commands: `bash` where there is one.
pub fn find_shell() -> PathBuf {
    let shells = ["/bin/bash", "/usr/bin/bash"].map(PathBuf::from);
    shells
        .into_iter()
        .find(|p| p.is_file())
        .unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

/// The command line for `argv`, seen as `view` says, under the configured limits.
pub fn wrap<S: AsRef<OsStr>>(
    isolation: &Isolation,
    view: &View<'_>,
    config: &RunnerConfig,
    argv: &[S],
) -> Command {
    let mut command = match isolation {
        Isolation::Bwrap(program) => {
            let mut command = Command::new(program);
            command
                .args(bwrap_args(view, config))
                .arg("--")
                .arg("/bin/sh");
            command
        }
        Isolation::Open => {
            let mut command = Command::new("/bin/sh");
            command.current_dir(inside(view.work, view.cwd));
            command
        }
    };
    command
        .arg("-c")
        .arg(limits_script(isolation, config))
        .arg("sh")
        .args(argv);
    let isolated = matches!(isolation, Isolation::Bwrap(_));
    let (home, tmp) = if isolated {
        (Path::new(WORK), Path::new("/tmp"))
    } else {
        (view.work, view.tmp)
    };
    command
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("HOME", home)
        .env("TMPDIR", tmp)
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .envs(view.env.iter().map(|(k, v)| (k, v)))
        .env(MARK, view.mark)
        // A group of its own: the whole of it can be ended by one signal.
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// A folder beneath `root`, without the dot that programs would show in their own paths.
fn inside(root: &Path, cwd: &str) -> PathBuf {
    if cwd == "." {
        root.to_owned()
    } else {
        root.join(cwd)
    }
}

/// Sets the limits, then becomes the program. A limit that is already stricter stays.
fn limits_script(isolation: &Isolation, config: &RunnerConfig) -> String {
    let mut script = format!(
        "{{ ulimit -c 0; ulimit -v {}; ulimit -f {}; ulimit -n {}; ",
        config.memory_bytes_max.div_ceil(1_024),
        config.file_bytes_max.div_ceil(512),
        config.open_files_max,
    );
    if matches!(isolation, Isolation::Bwrap(_)) {
        // Counted within the namespace. Outside, it would count every process of this user.
        let n = config.processes_max;
        script.push_str(&format!("ulimit -p {n} || ulimit -u {n}; "));
    }
    script.push_str("} 2>/dev/null; exec \"$@\"");
    script
}

fn bwrap_args(view: &View<'_>, config: &RunnerConfig) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::with_capacity(96);
    let mut add = |parts: &[&OsStr]| args.extend(parts.iter().map(OsString::from));
    let flags = [
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ];
    add(&flags.map(OsStr::new));
    add(&["--hostname", "sandbox"].map(OsStr::new));
    if view.network {
        add(&[OsStr::new("--share-net")]);
    }
    add(&["--ro-bind", "/usr", "/usr"].map(OsStr::new));
    for dir in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
        match std::fs::read_link(dir) {
            Ok(target) => add(&[OsStr::new("--symlink"), target.as_os_str(), OsStr::new(dir)]),
            Err(_) => add(&["--ro-bind-try", dir, dir].map(OsStr::new)),
        }
    }
    let network: &[&str] = if view.network { ETC_NETWORK } else { &[] };
    for name in ETC.iter().chain(network) {
        let path = format!("/etc/{name}");
        add(&["--ro-bind-try", &path, &path].map(OsStr::new));
    }
    for path in &config.read_only_paths {
        add(&[
            OsStr::new("--ro-bind-try"),
            path.as_os_str(),
            path.as_os_str(),
        ]);
    }
    add(&["--proc", "/proc", "--dev", "/dev"].map(OsStr::new));
    add(&["--size", SHM_BYTES, "--tmpfs", "/dev/shm"].map(OsStr::new));
    add(&[
        OsStr::new("--bind"),
        view.work.as_os_str(),
        OsStr::new(WORK),
    ]);
    add(&[
        OsStr::new("--bind"),
        view.tmp.as_os_str(),
        OsStr::new("/tmp"),
    ]);
    // What is left writable is on disk and counted, or small.
    add(&["--remount-ro", "/dev", "--remount-ro", "/"].map(OsStr::new));
    let cwd = inside(Path::new(WORK), view.cwd);
    add(&[OsStr::new("--chdir"), cwd.as_os_str()]);
    args
}
