//! `longhaul prune`.

use serde_json::{Value, json};

use super::args::PruneArgs;
use super::client::Client;
use super::exit::CliError;
use super::output::Output;
use super::session::put;

/// What went in all calls together.
#[derive(Default)]
struct Total {
    sessions: u64,
    journal_values: u64,
    journal_bytes: u64,
    checkpoints: Vec<Value>,
}

/// Prunes, one bounded call after the other, and prints what went.
pub(crate) async fn run(args: PruneArgs, out: Output) -> Result<(), CliError> {
    let client = Client::new(&args.at)?;
    let mut body = json!({ "dry_run": args.dry_run });
    for (key, value) in [("before", args.before), ("session_id", args.session)] {
        if let Some(value) = value {
            put(&mut body, key, value);
        }
    }
    let mut total = Total::default();
    loop {
        let pruned = client.post_again("/v1/prune", &body).await?;
        total.add(&pruned);
        match pruned.get("next").filter(|next| !next.is_null()) {
            Some(next) => put(&mut body, "page", next.clone()),
            None => break,
        }
    }
    out.result(total.text(args.dry_run), &total.json(args.dry_run))
}

impl Total {
    fn add(&mut self, pruned: &Value) {
        let number = |key: &str| pruned.get(key).and_then(Value::as_u64).unwrap_or(0);
        self.sessions += number("sessions");
        self.journal_values += number("journal_values");
        self.journal_bytes += number("journal_bytes");
        let checkpoints = pruned.get("checkpoints").and_then(Value::as_array);
        self.checkpoints
            .extend(checkpoints.into_iter().flatten().cloned());
    }

    fn text(&self, dry_run: bool) -> String {
        let (values, bytes) = (self.journal_values, self.journal_bytes);
        let (checkpoints, sessions) = (self.checkpoints.len(), self.sessions);
        let what = if dry_run { "would go" } else { "gone" };
        format!(
            "{what}: journal values {values} ({bytes} bytes), checkpoints {checkpoints}, of sessions {sessions}"
        )
    }

    fn json(&self, dry_run: bool) -> Value {
        json!({
            "dry_run": dry_run,
            "sessions": self.sessions,
            "journal_values": self.journal_values,
            "journal_bytes": self.journal_bytes,
            "checkpoints": self.checkpoints,
        })
    }
}
