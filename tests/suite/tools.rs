//! The built-in tools in real sandboxes of this machine.

#[cfg(feature = "mcp")]
mod mcp;

use std::time::Duration;

use longhaul::runner::sandbox::bwrap::WORK;
use longhaul::runner::sandbox::dir::DirProvider;
use longhaul::runner::sandbox::{Sandbox, SandboxProvider, SandboxRequest};
use longhaul::runner::settings::RunnerConfig;
use longhaul::tool::{ToolError, ToolInput, ToolOutput, built_in};
use longhaul_actors::env::Door;
use serde_json::{Value, json};

/// A sandbox of its own.
struct Bench {
    sandbox: Box<dyn Sandbox>,
    folder: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("sandboxes");
        let provider = DirProvider::open(root, RunnerConfig::default(), Door::system())
            .await
            .unwrap();
        let request = SandboxRequest {
            session_id: "sess_x".to_owned(),
            run_id: "run_x".to_owned(),
            workspace: None,
            attempt: 1,
            profile: json!({"provider": "dir"}),
            resume: json!({"kind": "fresh"}),
        };
        let sandbox = provider.create(request).await.unwrap();
        Self { sandbox, folder }
    }

    async fn with(files: &[(&str, &str)]) -> Self {
        let bench = Self::new().await;
        for (path, text) in files {
            bench.write(path, text.as_bytes()).await;
        }
        bench
    }

    async fn write(&self, path: &str, bytes: &[u8]) {
        let (path, bytes) = (path.to_owned(), bytes.to_vec());
        self.sandbox.write_file(path, bytes).await.unwrap();
    }

    async fn text_of(&self, path: &str) -> String {
        let bytes = self.sandbox.read_file(path.to_owned(), 1 << 20).await;
        String::from_utf8(bytes.unwrap()).unwrap()
    }

    async fn try_call(&self, tool: &str, input: Value) -> Result<ToolOutput, ToolError> {
        let call = ToolInput {
            call_id: "call_1",
            input: &input,
            sandbox: self.sandbox.as_ref(),
            time_limit: Duration::from_secs(60),
        };
        built_in(tool).unwrap().call(call).await
    }

    async fn call(&self, tool: &str, input: Value) -> ToolOutput {
        self.try_call(tool, input).await.unwrap()
    }

    /// The text of a call that goes well.
    async fn good(&self, tool: &str, input: Value) -> String {
        let output = self.call(tool, input.clone()).await;
        assert!(!output.is_error, "{tool} {input}: {output:?}");
        output.output.as_str().unwrap().to_owned()
    }

    /// The text of a call that does not.
    async fn bad(&self, tool: &str, input: Value) -> String {
        let output = self.call(tool, input.clone()).await;
        assert!(output.is_error, "{tool} {input}: {output:?}");
        output.output.as_str().unwrap().to_owned()
    }
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
async fn a_command_tells_its_output_and_its_exit_code() {
    let bench = Bench::with(&[("src/a", "1")]).await;
    let done = bench
        .call(
            "bash",
            json!({"command": "ls; echo no >&2; exit 7", "cwd": "src"}),
        )
        .await;
    assert_eq!((done.output, done.exit_code), (json!("a\nno\n"), Some(7)));
    assert!(done.is_error);
    assert_eq!(
        bench
            .good("bash", json!({"command": "pwd | wc -l"}))
            .await
            .trim(),
        "1"
    );
    let told = bench
        .bad("bash", json!({"command": "true", "cwd": "../.."}))
        .await;
    assert!(told.contains("stay inside"), "{told}");
}

#[tokio::test]
async fn a_command_that_hangs_or_multiplies_is_ended_with_all_it_started() {
    let bench = Bench::new().await;
    let unique = format!("sleep 9{}", std::process::id());
    let command = format!(
        "echo begun; for i in $(seq 40); do (setsid {unique} & {unique} &) ; done; {unique}"
    );
    let late = bench
        .call("bash", json!({"command": command, "timeout_ms": 700}))
        .await;
    let text = late.output.as_str().unwrap();
    assert!(late.is_error && late.exit_code.is_none());
    assert!(
        text.starts_with("begun\n") && text.contains("its time was over"),
        "{text}"
    );
    assert_eq!(processes_with(&unique), 0);
}

#[tokio::test]
async fn a_flood_of_output_is_cut() {
    let bench = Bench::new().await;
    let told = bench
        .good(
            "bash",
            json!({"command": "yes word | head -c 50000000; echo"}),
        )
        .await;
    assert!(told.len() < 66 << 10, "{}", told.len());
    assert!(told.contains("bytes were cut out here") && told.contains("were dropped"));
    let told = bench
        .good("bash", json!({"command": "head -c 99 /dev/zero"}))
        .await;
    assert!(told.contains("the output is binary: 99 bytes"), "{told}");
}

#[tokio::test]
async fn files_are_written_read_and_edited() {
    let bench = Bench::new().await;
    let wrote = bench
        .good(
            "write_file",
            json!({"path": "a/b.txt", "text": "one\ntwo\n"}),
        )
        .await;
    assert_eq!(wrote, "wrote a/b.txt (8 bytes, 2 lines)");
    let told = bench
        .good("read_file", json!({"path": format!("{WORK}/a/b.txt")}))
        .await;
    assert_eq!(told, "     1\tone\n     2\ttwo\n");
    let told = bench
        .good(
            "read_file",
            json!({"path": "a/b.txt", "offset": 2, "limit": 1}),
        )
        .await;
    assert_eq!(told, "     2\ttwo\n");
    let edit = json!({"path": "a/b.txt", "old": "two", "new": "three"});
    let told = bench.good("edit_file", edit.clone()).await;
    assert_eq!(told, "replaced one place in a/b.txt, in line 2");
    assert_eq!(bench.text_of("a/b.txt").await, "one\nthree\n");
    assert!(
        bench
            .bad("edit_file", edit)
            .await
            .contains("`old` is not in a/b.txt")
    );
    let all = json!({"path": "a/b.txt", "old": "e", "new": "E", "replace_all": true});
    bench.good("edit_file", all).await;
    assert_eq!(bench.text_of("a/b.txt").await, "onE\nthrEE\n");
}

#[tokio::test]
async fn edits_at_the_same_time_all_count() {
    let names: Vec<String> = (10..40).map(|n| format!("word{n}")).collect();
    let bench = Bench::with(&[("f", &names.join("\n"))]).await;
    let edits = names.iter().map(|name| {
        bench.good(
            "edit_file",
            json!({"path": "f", "old": name, "new": "done"}),
        )
    });
    futures_util::future::join_all(edits).await;
    assert_eq!(bench.text_of("f").await, ["done"; 30].join("\n"));
}

#[tokio::test]
async fn what_is_no_text_or_too_large_is_said_so() {
    let bench = Bench::new().await;
    bench.write("bin", b"\x7fELF\0\0").await;
    bench.write("latin", b"caf\xe9\n").await;
    let told = bench.good("read_file", json!({"path": "bin"})).await;
    assert_eq!(
        told,
        "bin is binary: 6 bytes that begin with 7f 45 4c 46 00 00"
    );
    let told = bench.good("read_file", json!({"path": "latin"})).await;
    assert!(told.contains("not all of it is UTF-8"), "{told}");
    let edit = json!({"path": "latin", "old": "caf", "new": "x"});
    assert!(bench.bad("edit_file", edit).await.contains("is not UTF-8"));
    bench
        .good("bash", json!({"command": "truncate -s 9M big"}))
        .await;
    let told = bench.bad("read_file", json!({"path": "big"})).await;
    assert!(told.contains("larger than 8388608 bytes"), "{told}");
}

#[tokio::test]
async fn nothing_leads_out_and_faults_are_told_to_the_model() {
    let bench = Bench::new().await;
    std::fs::write(bench.folder.path().join("secret"), "s").unwrap();
    bench
        .good(
            "bash",
            json!({"command": "ln -s /etc etc; ln -s ../../../secret up; mkfifo pipe"}),
        )
        .await;
    for path in ["/etc/passwd", "../x", "etc/passwd", "up", "pipe", "."] {
        for (tool, more) in [
            ("read_file", json!({})),
            ("write_file", json!({"text": "x"})),
            ("edit_file", json!({"old": "a", "new": "b"})),
        ] {
            let mut input = more;
            input["path"] = json!(path);
            let told = bench.bad(tool, input).await;
            assert!(told.contains("cannot be used"), "{tool} {path}: {told}");
        }
    }
    for (tool, input, said) in [
        ("read_file", json!({"path": "none"}), "there is no \"none\""),
        (
            "list_files",
            json!({"path": "none"}),
            "there is no \"none\"",
        ),
        (
            "search",
            json!({"pattern": "x", "path": "none"}),
            "there is no \"none\"",
        ),
        (
            "search",
            json!({"pattern": "("}),
            "`pattern` cannot be used",
        ),
        (
            "search",
            json!({"pattern": "(?:\\w{50}){900}"}),
            "`pattern` cannot be used",
        ),
        (
            "search",
            json!({"pattern": "x", "glob": "[a"}),
            "`glob` is no glob",
        ),
        ("list_files", json!({"glob": "{a"}), "`glob` is no glob"),
        ("bash", json!({}), "`command` is missing: a string"),
        (
            "bash",
            json!({"command": "x", "timeout": 1}),
            "there is no argument `timeout`",
        ),
        (
            "edit_file",
            json!({"path": "x", "old": "", "new": ""}),
            "`old` is a string of 0",
        ),
        ("read_file", json!("x"), "must be a JSON object"),
    ] {
        let told = bench.bad(tool, input.clone()).await;
        assert!(told.contains(said), "{tool} {input}: {told}");
    }
    bench.sandbox.release().await;
    let gone = bench.try_call("list_files", json!({})).await.unwrap_err();
    assert_eq!(gone.code, "sandbox.failed");
}

#[tokio::test]
async fn listings_are_in_order_filtered_and_bounded() {
    let bench = Bench::with(&[
        ("b.rs", "12"),
        ("a/x.rs", "1"),
        ("a/deep/y.rs", "1"),
        (".git/config", "1"),
    ])
    .await;
    bench.good("bash", json!({"command": "ln -s a link"})).await;
    let told = bench.good("list_files", json!({"depth": 1})).await;
    assert_eq!(told, ".git/\na/\nb.rs (2 bytes)\nlink (link)\n");
    let told = bench.good("list_files", json!({"glob": "*.rs"})).await;
    assert_eq!(
        told,
        "a/deep/y.rs (1 bytes)\na/x.rs (1 bytes)\nb.rs (2 bytes)\n"
    );
    let told = bench
        .good("list_files", json!({"path": "a", "glob": "deep/*"}))
        .await;
    assert_eq!(told, "a/deep/y.rs (1 bytes)\n");
    assert_eq!(
        bench.good("list_files", json!({"glob": "*.c"})).await,
        "[nothing found]\n"
    );
    bench
        .good(
            "bash",
            json!({"command": "mkdir many full; touch many/{1..1500} full/{1..10500}"}),
        )
        .await;
    let told = bench.good("list_files", json!({"path": "many"})).await;
    assert!(told.ends_with("[1000 of 1500 shown]\n"), "{}", told.len());
    let told = bench.good("list_files", json!({})).await;
    assert!(told.contains("full/ was passed over"), "{}", told.len());
}

#[tokio::test]
async fn searches_find_lines_and_say_what_they_left_out() {
    let bench = Bench::with(&[
        ("a.rs", "fn one() {}\nfn two() {}\n"),
        ("sub/b.rs", "// fn\nlet x = 1;\n"),
        ("sub/c.txt", "fn three\n"),
        (".git/d", "fn hidden\n"),
    ])
    .await;
    bench.write("bin", b"fn\0").await;
    let told = bench.good("search", json!({"pattern": "^fn \\w+"})).await;
    assert_eq!(
        told,
        "a.rs:1: fn one() {}\na.rs:2: fn two() {}\nsub/c.txt:1: fn three\n\
         [3 matching lines in 2 files; 1 binary files were left out]\n"
    );
    let told = bench
        .good(
            "search",
            json!({"pattern": "fn", "glob": "*.rs", "path": "sub"}),
        )
        .await;
    assert_eq!(told, "sub/b.rs:1: // fn\n[1 matching lines in 1 files]\n");
    let told = bench
        .good("search", json!({"pattern": "TWO", "path": "a.rs"}))
        .await;
    assert_eq!(told, "[no match in 1 files]\n");
    let told = bench
        .good("search", json!({"pattern": "(?i)TWO", "path": "a.rs"}))
        .await;
    assert!(told.starts_with("a.rs:2: fn two"), "{told}");
    let told = bench
        .good("search", json!({"pattern": "fn", "limit": 1}))
        .await;
    assert!(told.contains("only the first 1 matches"), "{told}");
}
