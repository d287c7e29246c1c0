//! The grammar of forks, checkpoints and pruning.

use clap::Args;

use super::ServerArgs;

/// `longhaul session fork`
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The session.
    pub session: String,
    /// Where.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Who the child acts as; as the session when left out.
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// Where a fork starts: one of these, or the end of the log.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct PlaceArgs {
    /// At the end of the log (also without any of these).
    #[arg(long)]
    pub head: bool,
    /// At this event, inclusive.
    #[arg(long = "at", value_name = "EVENT")]
    pub event: Option<String>,
    /// At this position, inclusive.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seq: Option<u64>,
    /// At this checkpoint, with its disk.
    #[arg(long, value_name = "CKPT")]
    pub checkpoint: Option<String>,
}

/// `longhaul session diff`
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The session.
    pub session: String,
    /// The other one.
    pub against: String,
    /// Most events of each.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub limit: u16,
    /// Events of the first one after this position.
    #[arg(long, value_name = "SEQ")]
    pub left_after: Option<u64>,
    /// Events of the other one after this position.
    #[arg(long, value_name = "SEQ")]
    pub right_after: Option<u64>,
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// A session, where nothing else is needed.
#[derive(Debug, Args)]
pub struct OneArgs {
    /// The session.
    pub session: String,
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `longhaul session transcript`
#[derive(Debug, Args)]
pub struct TranscriptArgs {
    /// The session.
    pub session: String,
    /// What compactions took out, instead of their summaries.
    #[arg(long)]
    pub full: bool,
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `longhaul session resume`
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The session.
    pub session: String,
    /// What to say; a nudge to go on when left out.
    pub prompt: Vec<String>,
    /// From this checkpoint: the newest goes on in place, an older one in a fork.
    #[arg(long, value_name = "CKPT")]
    pub from: Option<String>,
    /// Only if the session acts as this principal.
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
}

/// `longhaul prune`
#[derive(Debug, Args)]
pub struct PruneArgs {
    /// What is older than this time (RFC 3339).
    #[arg(long, value_name = "TIME", required_unless_present = "session")]
    pub before: Option<String>,
    /// What is of this session.
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Say only what would go.
    #[arg(long)]
    pub dry_run: bool,
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
}
