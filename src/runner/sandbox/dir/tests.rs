//! Each behaviour is checked with and without isolation, except what isolation alone gives.

use std::process::Stdio;
use std::time::Duration;

use super::*;
use crate::runner::sandbox::leftovers::note_group;
use crate::runner::settings::IsolationMode;

struct Bench {
    _dir: tempfile::TempDir,
    root: PathBuf,
    provider: DirProvider,
}

async fn bench(isolation: IsolationMode, change: impl FnOnce(&mut RunnerConfig)) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("sandboxes");
    let mut config = RunnerConfig {
        isolation,
        ..RunnerConfig::default()
    };
    change(&mut config);
    let provider = DirProvider::open(root.clone(), config, Door::system())
        .await
        .unwrap();
    let root = root.canonicalize().unwrap();
    Bench {
        _dir: dir,
        root,
        provider,
    }
}

/// Both ways to run commands that this machine has.
async fn benches(change: impl Fn(&mut RunnerConfig)) -> Vec<Bench> {
    let mut all = vec![bench(IsolationMode::None, &change).await];
    let isolated = bench(IsolationMode::Preferred, &change).await;
    if isolated.provider.is_isolated() {
        all.push(isolated);
    }
    all
}

fn request() -> SandboxRequest {
    SandboxRequest {
        session_id: "sess_x".to_owned(),
        run_id: "run_x".to_owned(),
        workspace: None,
        attempt: 1,
        profile: serde_json::json!({"provider": "dir"}),
        resume: serde_json::json!({"kind": "fresh"}),
    }
}

impl Bench {
    async fn sandbox(&self) -> Box<dyn Sandbox> {
        self.provider.create(request()).await.unwrap()
    }

    fn attempts(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.root).unwrap();
        entries
            .map(|e| e.unwrap().path())
            .filter(|p| p.is_dir())
            .collect()
    }
}

fn sh(command: &str) -> Exec {
    Exec {
        command: command.to_owned(),
        merge_stderr: true,
        ..Exec::default()
    }
}

fn text(output: &ExecOutput) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits for a condition that another process brings about.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let mut every = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..2_000 {
        every.tick().await;
        if condition() {
            return;
        }
    }
    panic!("never: {what}");
}

fn processes_with(needle: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    lines
        .filter(|l| {
            String::from_utf8_lossy(l)
                .replace('\0', " ")
                .contains(needle)
        })
        .count()
}

#[tokio::test]
async fn commands_and_files_share_the_folder() {
    for bench in benches(|_| {}).await {
        let sandbox = bench.sandbox().await;
        sandbox
            .write_file("in/put".to_owned(), b"one\n".to_vec())
            .await
            .unwrap();
        let output = sandbox
            .exec(sh("cat in/put; echo err >&2; echo two > out; exit 3"))
            .await
            .unwrap();
        assert_eq!(
            (text(&output).as_str(), output.exit_code),
            ("one\nerr\n", Some(3))
        );
        assert_eq!(
            sandbox.read_file("out".to_owned(), 9).await.unwrap(),
            b"two\n"
        );
        let apart = Exec {
            merge_stderr: false,
            cwd: Some("in".to_owned()),
            ..sh("ls; echo e >&2")
        };
        let output = sandbox.exec(apart).await.unwrap();
        assert_eq!(
            (text(&output).as_str(), output.stderr.as_slice()),
            ("put\n", b"e\n".as_slice())
        );
        let out = Exec {
            cwd: Some("..".to_owned()),
            ..sh("true")
        };
        assert_eq!(
            sandbox.exec(out).await.unwrap_err().code(),
            "sandbox.path_invalid"
        );
        sandbox.exec(sh("echo kept > \"$TMPDIR/t\"")).await.unwrap();
        assert_eq!(
            text(&sandbox.exec(sh("cat \"$TMPDIR/t\"")).await.unwrap()),
            "kept\n"
        );
        sandbox.release().await;
        assert_eq!(bench.attempts(), Vec::<PathBuf>::new());
        assert_eq!(
            sandbox.exec(sh("true")).await.unwrap_err().code(),
            "sandbox.failed"
        );
    }
}

#[tokio::test]
async fn output_is_bounded_and_binary_output_survives() {
    for bench in benches(|c| c.output_bytes_max = 1_000).await {
        let sandbox = bench.sandbox().await;
        let output = sandbox
            .exec(sh("head -c 300000 /dev/zero; printf '\\377\\000'"))
            .await
            .unwrap();
        assert_eq!(
            (output.stdout.len(), output.dropped_bytes),
            (1_000, 299_002)
        );
        let output = sandbox
            .exec(sh("printf '\\377\\000\\n\\303'"))
            .await
            .unwrap();
        assert_eq!(output.stdout, [0xff, 0, b'\n', 0xc3]);
        sandbox.release().await;
    }
}

#[tokio::test]
async fn a_command_over_its_time_ends_with_all_it_started() {
    for bench in benches(|_| {}).await {
        let sandbox = bench.sandbox().await;
        let mark = format!("31{}", std::process::id());
        let tree = format!(
            "(sleep {mark}) & (setsid sleep {mark} &) ; for i in 1 2 3 4 5 6 7 8; do (sleep {mark} & sleep {mark}) & done; echo up; sleep {mark}"
        );
        let exec = Exec {
            timeout: Some(Duration::from_millis(400)),
            ..sh(&tree)
        };
        let output = sandbox.exec(exec).await.unwrap();
        assert!(output.timed_out && output.exit_code.is_none(), "{output:?}");
        assert_eq!(text(&output), "up\n");
        until("the tree is gone", || {
            processes_with(&format!("sleep {mark}")) == 0
        })
        .await;
        sandbox.release().await;
    }
}

#[tokio::test]
async fn a_daemon_does_not_outlive_its_command() {
    for bench in benches(|_| {}).await {
        let sandbox = bench.sandbox().await;
        let mark = format!("32{}", std::process::id());
        let script = format!("setsid nohup sleep {mark} > /dev/null 2>&1 & sleep 0.05; echo done");
        let output = sandbox.exec(sh(&script)).await.unwrap();
        assert_eq!(
            (text(&output).as_str(), output.exit_code),
            ("done\n", Some(0))
        );
        until("the daemon is gone", || {
            processes_with(&format!("sleep {mark}")) == 0
        })
        .await;
        sandbox.release().await;
    }
}

#[tokio::test]
async fn a_dropped_command_ends() {
    for bench in benches(|_| {}).await {
        let sandbox = bench.sandbox().await;
        let mark = format!("33{}", std::process::id());
        let script = format!("sleep {mark}");
        {
            let running = sandbox.exec(sh(&script));
            tokio::pin!(running);
            let up = until("it runs", || processes_with(&script) > 0);
            tokio::select! { _ = &mut running => panic!("ended"), () = up => {} }
        }
        until("it is gone", || processes_with(&script) == 0).await;
        sandbox.release().await;
        assert_eq!(bench.attempts(), Vec::<PathBuf>::new());
    }
}

#[tokio::test]
async fn memory_is_bounded() {
    for bench in benches(|c| c.memory_bytes_max = 256 << 20).await {
        let sandbox = bench.sandbox().await;
        let output = sandbox
            .exec(sh(
                "ulimit -v; x=$(head -c 400000000 /dev/zero | tr '\\0' a); echo ${#x}",
            ))
            .await
            .unwrap();
        assert!(text(&output).starts_with("262144\n"), "{}", text(&output));
        assert!(!text(&output).contains("400000000"), "{}", text(&output));
        sandbox.release().await;
    }
}

#[tokio::test]
async fn isolated_commands_see_neither_host_nor_network() {
    let bench = bench(IsolationMode::Preferred, |_| {}).await;
    if !bench.provider.is_isolated() {
        return;
    }
    let sandbox = bench.sandbox().await;
    let seen = sandbox.exec(sh("pwd; ls /; ls -A /tmp; ls /proc | grep -c '^[0-9]'; ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :")).await.unwrap();
    let seen = text(&seen);
    assert!(seen.starts_with("/work\n"), "{seen}");
    for hidden in ["root", "home", "var", "sys", "opt"] {
        assert!(!seen.lines().any(|l| l == hidden), "{seen}");
    }
    assert!(seen.ends_with("\n1\n"), "only the loopback device: {seen}");
    let denied = "touch /x; touch /usr/x; touch /etc/x; mount -t tmpfs none /tmp; cat /etc/shadow; echo x > /proc/sys/kernel/hostname; ln -s / out; cat out/etc/shadow";
    let output = sandbox
        .exec(sh(&format!("({denied}) 2>/dev/null")))
        .await
        .unwrap();
    assert_eq!(text(&output), "");
    assert_eq!(
        sandbox
            .read_file("out/etc/passwd".to_owned(), 9999)
            .await
            .unwrap_err()
            .code(),
        "sandbox.path_invalid"
    );
    assert!(!Path::new("/usr/x").exists());
    sandbox.release().await;
}

#[tokio::test]
async fn isolation_that_does_not_work_is_found_out_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str, isolation| {
        // Nothing starts in so little memory, the probe neither.
        let config = RunnerConfig {
            isolation,
            memory_bytes_max: 1 << 10,
            ..RunnerConfig::default()
        };
        DirProvider::open(dir.path().join(name), config, Door::system())
    };
    let refused = open("a", IsolationMode::Required).await;
    assert!(
        matches!(refused, Err(DirError::Isolation(_))),
        "{refused:?}"
    );
    let preferred = open("b", IsolationMode::Preferred).await.unwrap();
    assert!(!preferred.is_isolated());
    let strict = SandboxRequest {
        profile: serde_json::json!({"provider": "dir", "isolation": "required"}),
        ..request()
    };
    let refused = preferred.create(strict).await.unwrap_err();
    assert_eq!(refused.code(), "sandbox.unsupported");
    assert_eq!(
        std::fs::read_dir(dir.path().join("b")).unwrap().count(),
        1,
        "only the lock"
    );
}

#[tokio::test]
async fn a_profile_may_ask_for_less() {
    for bench in benches(|_| {}).await {
        let limits = serde_json::json!({"output_bytes_max": 5, "command_s_max": 1, "memory_bytes_max": 1u64 << 40});
        let less = SandboxRequest {
            profile: serde_json::json!({"limits": limits}),
            ..request()
        };
        let sandbox = bench.provider.create(less).await.unwrap();
        let output = sandbox.exec(sh("ulimit -v; sleep 20")).await.unwrap();
        assert_eq!(
            (text(&output).as_str(), output.timed_out),
            ("16777".get(..5).unwrap(), true)
        );
        sandbox.release().await;
    }
}

#[tokio::test]
async fn folders_without_permissions_are_removed_too() {
    for bench in benches(|_| {}).await {
        let sandbox = bench.sandbox().await;
        sandbox
            .exec(sh(
                "mkdir -p a/b/c && touch a/b/c/d && chmod 000 a/b a && ln -s /etc l",
            ))
            .await
            .unwrap();
        sandbox.release().await;
        assert_eq!(bench.attempts(), Vec::<PathBuf>::new());
        assert!(Path::new("/etc/passwd").exists());
    }
}

#[tokio::test]
async fn what_an_earlier_process_left_is_ended_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("sandboxes");
    let name = format!("{:032x}", u128::from_be_bytes(Door::system().ids.secret()));
    let place = root.join(&name);
    std::fs::create_dir_all(place.join("work/deep")).unwrap();
    std::fs::create_dir_all(root.join("not-ours")).unwrap();
    let start = |seconds: &str, marked: bool| {
        let mut command = std::process::Command::new("sleep");
        command.arg(seconds).stdin(Stdio::null());
        if marked {
            command.env(super::super::bwrap::MARK, format!("{name}.7;"));
        }
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().unwrap()
    };
    let (mut marked, mut noted, mut innocent) = (
        start("3401", true),
        start("3402", false),
        start("3403", false),
    );
    let pid = |c: &std::process::Child| rustix::process::Pid::from_raw(c.id() as i32).unwrap();
    note_group(&place.join(GROUPS), pid(&noted)).unwrap();
    // A group whose number now belongs to somebody who started later.
    let mut notes = std::fs::read_to_string(place.join(GROUPS)).unwrap();
    let boot = notes.trim().rsplit(' ').next().unwrap().to_owned();
    notes.push_str(&format!("{} 1 {boot}\nrubbish\n", innocent.id()));
    std::fs::write(place.join(GROUPS), notes).unwrap();

    let config = RunnerConfig {
        isolation: IsolationMode::None,
        ..RunnerConfig::default()
    };
    let provider = DirProvider::open(root.clone(), config.clone(), Door::system())
        .await
        .unwrap();
    assert!(!place.exists() && root.join("not-ours").exists());
    assert!(!marked.wait().unwrap().success() && !noted.wait().unwrap().success());
    assert_eq!(innocent.try_wait().unwrap(), None);
    innocent.kill().unwrap();
    innocent.wait().unwrap();

    let second = DirProvider::open(root.clone(), config, Door::system()).await;
    assert!(matches!(second, Err(DirError::InUse(_))));
    drop(provider);
}

#[tokio::test]
async fn a_program_talks_and_ends_with_its_owner() {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    for bench in benches(|_| {}).await {
        let sandbox = bench.sandbox().await;
        let mark = format!("35{}", std::process::id());
        let argv = [
            "/bin/sh",
            "-c",
            &format!("pwd; sleep {mark} & read x; echo got $x; read y; exit 7"),
        ];
        let program = Launch {
            argv: argv.map(str::to_owned).to_vec(),
            env: Vec::new(),
        };
        let mut process = sandbox.launch(program).await.unwrap();
        let mut lines = BufReader::new(process.stdout).lines();
        let pwd = lines.next_line().await.unwrap().unwrap();
        assert!(pwd == "/work" || pwd.ends_with("/work"), "{pwd}");
        process.stdin.write_all(b"hello\n").await.unwrap();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "got hello");
        process.stdin.write_all(b"\n").await.unwrap();
        assert_eq!(process.control.wait().await, Some(7));
        until("its child is gone", || {
            processes_with(&format!("sleep {mark}")) == 0
        })
        .await;
        sandbox.release().await;
    }
}
