//! Everything the commands write. No other module touches stdout or stderr.
//!
//! Results go to stdout, everything else (notes, progress, errors) to stderr. With `--json`
//! stdout holds JSON only: one object, or one per line where there are many.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::exit::{CliError, Exit};

/// The way out.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    json: bool,
}

impl Output {
    /// Human text, or JSON.
    pub fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether JSON was asked for.
    pub fn is_json(self) -> bool {
        self.json
    }

    /// One line for people. Nothing with `--json`.
    pub fn line(self, text: impl Display) -> Result<(), CliError> {
        if self.json {
            Ok(())
        } else {
            write_line(&mut io::stdout().lock(), &text)
        }
    }

    /// One JSON value on a line of its own. Nothing without `--json`.
    pub fn value(self, value: &Value) -> Result<(), CliError> {
        if self.json {
            write_line(&mut io::stdout().lock(), value)
        } else {
            Ok(())
        }
    }

    /// The same result for people and for programs.
    pub fn result(self, text: impl Display, value: &Value) -> Result<(), CliError> {
        self.line(text)?;
        self.value(value)
    }

    /// One line of raw JSON as it came. Nothing without `--json`.
    pub fn raw(self, json: &str) -> Result<(), CliError> {
        if self.json {
            write_line(&mut io::stdout().lock(), &json)
        } else {
            Ok(())
        }
    }

    /// A remark that is no result: to stderr, in both modes. A closed stderr is no reason to
    /// stop.
    pub fn note(self, text: impl Display) {
        let _ = write_line(&mut io::stderr().lock(), &text);
    }

    /// An error, to stderr. Nothing when nobody reads us any more.
    pub fn error(self, e: &CliError) {
        if !e.is_closed() {
            if self.json {
                self.note(e.to_json())
            } else {
                self.note(e)
            }
        }
    }

    /// Live progress on stderr: a bar of `total` steps, or a spinner for `None`. Without a
    /// terminal it draws nothing: use [`Progress::say`] for what must be seen then, too.
    pub fn progress(self, total: Option<u64>, what: &str) -> Progress {
        let terminal = io::stderr().is_terminal() && !self.json;
        let target = if terminal {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(total, target);
        let template = match total {
            Some(_) => "{prefix:<22} {bar:30} {pos}/{len} {elapsed} {msg}",
            None => "{prefix:<22} {spinner} {elapsed} {msg}",
        };
        // The templates above are well formed; the default style is good enough otherwise.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress {
            bar,
            output: self,
            terminal,
        }
    }
}

/// Live progress of one step.
#[derive(Debug, Clone)]
pub struct Progress {
    bar: ProgressBar,
    output: Output,
    terminal: bool,
}

impl Progress {
    /// Moves to `done` steps.
    pub fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// What is going on now, shown beside the bar.
    pub fn message(&self, text: impl Into<String>) {
        self.bar.set_message(text.into());
    }

    /// A line that stays, with or without a terminal (not with `--json`).
    pub fn say(&self, text: impl Display) {
        if self.terminal {
            self.bar.suspend(|| self.output.note(&text));
        } else if !self.output.json {
            self.output.note(&text);
        }
    }

    /// Takes the bar away.
    pub fn done(&self) {
        self.bar.finish_and_clear();
    }
}

/// What clap has to say: help and version to stdout, usage errors to stderr.
pub(crate) fn usage(e: &clap::Error) -> Exit {
    let _ = e.print();
    if e.use_stderr() {
        Exit::Usage
    } else {
        Exit::Done
    }
}

fn write_line(out: &mut dyn Write, text: &dyn Display) -> Result<(), CliError> {
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => CliError::closed(),
            _ => CliError::new(
                Exit::Failed,
                "cli.output_failed",
                format!("cannot write the output: {e}"),
                "Check where the output goes.",
            ),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Gone;

    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let e = write_line(&mut Gone, &"x").unwrap_err();
        assert!(e.is_closed());
        assert_eq!(e.exit, Exit::Done);
    }
}
