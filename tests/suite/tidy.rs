//! Style as a test: what a reader may rely on in every file.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest file. Most have one purpose and half of this.
const LINES_MAX: usize = 500;
/// Longest line of code (rustfmt keeps to 100; tables in macros do not).
const COLUMNS_MAX: usize = 480;
/// Files that are one long table by nature, with their own limit: it may only go down.
const LONG: &[(&str, usize)] = &[];
/// Where code lives.
const CODE: &[&str] = &["src", "actors", "storage", "tests", "benches", "examples"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below the code folders with one of these endings, relative, sorted.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = CODE.iter().map(|f| root().join(f)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if endings
                .iter()
                .any(|e| path.extension().is_some_and(|x| x == *e))
            {
                let name = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(
        found.len() > 40,
        "the walk lost its way: {} files",
        found.len()
    );
    found
}

fn rust() -> Vec<(String, String)> {
    files(&["rs"])
}

/// Reports all at once: one at a time makes a long evening.
fn none(what: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{what}:\n  {}", faults.join("\n  "));
}

/// The part before the unit tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

fn is_test(name: &str) -> bool {
    let parts = ["tests/", "/tests.rs", "/testing", "benches/", "examples/"];
    parts.iter().any(|p| name.contains(p))
}

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for (name, text) in rust() {
        let max = LONG
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(LINES_MAX, |(_, max)| *max);
        let lines = text.lines().count();
        if lines > max {
            faults.push(format!("{name}: {lines} lines, at most {max}"));
        }
        if let Some(n) = text.lines().position(|l| l.chars().count() > COLUMNS_MAX) {
            faults.push(format!("{name}:{}: over {COLUMNS_MAX} columns", n + 1));
        }
    }
    none("too long", faults);
}

#[test]
fn the_exceptions_are_still_needed() {
    let all = rust();
    let mut faults = Vec::new();
    for (name, max) in LONG {
        match all
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, text)| text.lines().count())
        {
            None => faults.push(format!("{name} is gone")),
            Some(lines) if lines <= LINES_MAX => faults.push(format!("{name} is short now")),
            Some(lines) if lines + 40 < *max => faults.push(format!("{name}: lower {max}")),
            Some(_) => {}
        }
    }
    none("ratchet", faults);
}

#[test]
fn every_file_says_what_it_is_for() {
    let faults = rust()
        .into_iter()
        .filter(|(name, _)| !is_test(name))
        .filter(|(_, text)| !text.starts_with("//!") && !text.starts_with("#![doc"))
        .map(|(name, _)| name)
        .collect();
    none("files without a first line of documentation", faults);
}

#[test]
fn nothing_is_left_lying_about() {
    // Split, so that this file does not name them itself.
    let words: Vec<String> = [
        ("to", "do!("),
        ("unimple", "mented!("),
        ("db", "g!("),
        ("FIX", "ME"),
        ("XX", "X"),
        ("TO", "DO"),
        ("#[ign", "ore"),
        ("HA", "CK"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect();
    let mut faults = Vec::new();
    for (name, text) in rust() {
        for (n, line) in text.lines().enumerate() {
            for word in words.iter().filter(|w| line.contains(w.as_str())) {
                faults.push(format!("{name}:{}: {word}", n + 1));
            }
        }
    }
    none("left over", faults);
}

#[test]
fn tests_wait_for_conditions_and_not_for_clocks() {
    // Between two looks at a condition an async test may sleep; blocking a thread it may not.
    let sleeps = [format!("thread::{}", "sleep(")];
    let mut faults = Vec::new();
    for (name, text) in rust() {
        // In product files only the unit tests count: clippy watches the rest.
        let tests = if is_test(&name) {
            &text[..]
        } else {
            &text[product(&text).len()..]
        };
        let measures = ["benches/", "examples/"].iter().any(|p| name.contains(p));
        if measures || name == "tests/suite/tidy.rs" {
            continue;
        }
        for sleep in sleeps.iter().filter(|s| tests.contains(s.as_str())) {
            faults.push(format!("{name}: {sleep}"));
        }
    }
    none("sleeps in tests", faults);
}

#[test]
fn decisions_are_pure() {
    let forbidden = [
        "async ",
        ".await",
        "actix",
        "tokio",
        "tracing",
        "rocksdb",
        "std::fs",
        "std::time",
        "Instant",
        "SystemTime",
        "View",
        "dyn Log",
        "rand::",
        "println",
    ];
    let pure = |name: &str| {
        let rest = name.strip_prefix("actors/src/session/").unwrap_or("");
        rest.starts_with("decide") || rest.starts_with("evolve") || rest == "state.rs"
    };
    let mut seen = 0;
    let mut faults = Vec::new();
    for (name, text) in rust().into_iter().filter(|(name, _)| pure(name)) {
        seen += 1;
        for (n, line) in product(&text).lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for word in forbidden.iter().filter(|w| line.contains(**w)) {
                faults.push(format!("{name}:{}: {word}", n + 1));
            }
        }
    }
    assert!(
        seen >= 3,
        "decide, evolve and state are not where they were"
    );
    none("not pure", faults);
}

#[test]
fn queues_have_limits() {
    let words = [
        format!("unbounded_{}", "channel"),
        format!("mpsc::{}()", "unbounded"),
    ];
    let faults = rust()
        .into_iter()
        .filter(|(_, text)| words.iter().any(|w| text.contains(w.as_str())))
        .map(|(name, _)| name)
        .collect();
    none("unbounded queues", faults);
}

#[test]
fn only_the_output_module_prints() {
    let macros = [
        format!("print{}!(", "ln"),
        format!("eprint{}!(", "ln"),
        format!("stdo{}()", "ut"),
    ];
    let mut faults = Vec::new();
    for (name, text) in rust() {
        let speaks = name == "src/cli/output.rs" || name.starts_with("examples/");
        if is_test(&name) || speaks {
            continue;
        }
        for word in macros
            .iter()
            .filter(|w| product(&text).contains(w.as_str()))
        {
            faults.push(format!("{name}: {word}"));
        }
    }
    none("prints", faults);
}

#[test]
fn the_dependencies_of_the_layers_point_down() {
    let mut faults = Vec::new();
    for (name, text) in rust() {
        let upward: &[&str] = match name.split('/').next() {
            Some("storage") => &["longhaul_actors", "longhaul::"],
            Some("actors") => &["longhaul::", "actix_web", "rocksdb"],
            _ => &[],
        };
        for word in upward.iter().filter(|w| text.contains(**w)) {
            faults.push(format!("{name}: {word}"));
        }
    }
    none("upward dependencies", faults);
}

#[test]
fn the_project_speaks_only_of_itself() {
    // Paths of machines, and notes that mean nothing to a reader.
    let words: Vec<String> = [
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("../sha", "red"),
        ("/home", "/"),
        ("SPEC", ".md"),
    ]
    .iter()
    .map(|(a, b)| format!("{a}{b}"))
    .collect();
    let mut all = files(&["rs", "toml", "md"]);
    for name in ["README.md", "Makefile", "Cargo.toml", ".ci/run", ".ci/deps"] {
        all.push((
            name.to_owned(),
            fs::read_to_string(root().join(name)).unwrap(),
        ));
    }
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        all.push((
            path.display().to_string(),
            fs::read_to_string(&path).unwrap(),
        ));
    }
    let mut faults = Vec::new();
    for (name, text) in all {
        for word in words.iter().filter(|w| text.contains(w.as_str())) {
            faults.push(format!("{name}: {word}"));
        }
    }
    none("words of another place", faults);
}

#[test]
fn the_readme_knows_every_folder() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut faults = Vec::new();
    for entry in fs::read_dir(root()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') || name == "target";
        if entry.path().is_dir() && !hidden && !readme.contains(&format!("`{name}/")) {
            faults.push(name);
        }
    }
    none("folders that the README does not mention", faults);
}

#[test]
fn every_stored_type_has_a_golden_file() {
    use longhaul_actors::session::event::EventType;
    let Some(folder) = ["tests/golden", "actors/tests/golden", "actors/golden"]
        .iter()
        .map(|f| root().join(f))
        .find(|f| f.is_dir())
    else {
        panic!("no folder of golden files")
    };
    let mut names = String::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            names.push_str(&path.file_name().unwrap().to_string_lossy());
            names.push('\n');
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    let faults = EventType::ALL
        .iter()
        .map(|(kind, _)| kind.text())
        .filter(|text| !names.contains(text))
        .map(str::to_owned)
        .collect();
    none("event types without a golden file", faults);
}

#[test]
fn the_exit_codes_are_documented() {
    let docs = fs::read_to_string(root().join("docs/cli.md")).unwrap();
    for (exit, meaning) in longhaul::cli::exit::Exit::ALL {
        let row = format!("| {} | {meaning} |", *exit as u8);
        assert!(docs.contains(&row), "docs/cli.md lacks: {row}");
    }
}
