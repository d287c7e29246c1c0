//! The command line's grammar.

mod lineage;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use lineage::{DiffArgs, ForkArgs, OneArgs, PlaceArgs, PruneArgs, ResumeArgs, TranscriptArgs};

/// A durable runtime for agent sessions.
#[derive(Debug, Parser)]
#[command(
    name = "longhaul",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Cli {
    /// Print JSON for programs instead of text for people.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a session that survives kill -9: the place to start.
    Quickstart(QuickstartArgs),
    /// Serve HTTP on a data folder.
    Serve(ServeArgs),
    /// Work with sessions on a server.
    #[command(subcommand)]
    Session(SessionCommand),
    /// Describe what agents are.
    #[command(subcommand)]
    Deployment(DeploymentCommand),
    /// Let journals of finished runs go, and checkpoints.
    Prune(PruneArgs),
    /// Make tokens for principals and runners.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Run claims of a server elsewhere, in this process.
    Runner(RunnerArgs),
    /// Measure, and check that nothing acknowledged was lost, doubled or reordered.
    Load(LoadArgs),
    /// Read every record of a data folder that no server has open, and check it.
    Verify(VerifyArgs),
    /// Print every change of status that a session may make.
    Transitions,
}

/// `longhaul quickstart`
#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// Keep the data in this folder instead of a temporary one.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

/// `longhaul serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The data folder; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Where to listen. Port 0 takes a free one and prints it.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    pub listen: String,
    /// A configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A setting, e.g. `runs.lease_s=30`. May be given many times; wins over the file.
    #[arg(long = "set", value_name = "KEY=VALUE", num_args = 1..)]
    pub set: Vec<String>,
    /// Serve everything, but hand out no claim.
    #[arg(long)]
    pub paused: bool,
}

/// Where the server is and who we are.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// The server.
    #[arg(
        long,
        value_name = "URL",
        env = "LONGHAUL_URL",
        default_value = "http://127.0.0.1:7070",
        global = true
    )]
    pub server: String,
    /// The bearer token, where the server wants one.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "LONGHAUL_TOKEN",
        hide_env_values = true,
        global = true
    )]
    pub token: Option<String>,
    /// The workspace, on a server without tokens.
    #[arg(long, value_name = "ID", env = "LONGHAUL_WORKSPACE", global = true)]
    pub workspace: Option<String>,
}

/// `longhaul session …`
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// Start a session.
    Create {
        /// The agent deployment it acts as.
        #[arg(long, value_name = "ID")]
        deployment: String,
        /// Its revision; the current one when left out.
        #[arg(long, value_name = "N")]
        revision: Option<u32>,
        /// A first message.
        #[arg(long, value_name = "TEXT")]
        message: Option<String>,
        /// Pairs of your own.
        #[arg(long, value_name = "KEY=VALUE")]
        metadata: Vec<String>,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Send a message (accepted means durable, not finished).
    Send {
        /// The session.
        session: String,
        /// The text; `-` reads it from stdin.
        text: String,
        /// Then follow until the turn settles or parks.
        #[arg(long)]
        follow: bool,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Interrupt the turn and start anew with this message, in one step.
    Steer {
        /// The session.
        session: String,
        /// The text; `-` reads it from stdin.
        text: String,
        /// Then follow until the turn settles or parks.
        #[arg(long)]
        follow: bool,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Print events as they come; survives lost connections and restarts of the server.
    Follow {
        /// The session.
        session: String,
        /// How to follow.
        #[command(flatten)]
        how: FollowArgs,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Show where a session is, and why.
    Show {
        /// The session.
        session: String,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// List sessions.
    List {
        /// Only those with this status.
        #[arg(long)]
        status: Option<String>,
        /// Most sessions to list.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Start a session with the same past, up to the end of the log or an earlier place.
    Fork(ForkArgs),
    /// Compare two sessions: what they share, and what each has of its own.
    Diff(DiffArgs),
    /// Draw everything forked from the same first session.
    Tree(OneArgs),
    /// List a session's checkpoints, newest first.
    Checkpoints(OneArgs),
    /// Go on with the conversation; a run that failed is continued.
    Resume(ResumeArgs),
    /// Print the conversation as a model sees it.
    Transcript(TranscriptArgs),
    /// End the current turn; the session stays usable.
    Interrupt {
        /// The session.
        session: String,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Answer an open question, or give the result of a custom tool.
    Answer {
        /// The session.
        session: String,
        /// The item; may be left out when exactly one is open.
        #[arg(long, value_name = "ID")]
        item: Option<String>,
        /// One answer per question.
        #[arg(required_unless_present_any = ["dismiss", "output"])]
        answers: Vec<String>,
        /// Dismiss the question instead.
        #[arg(long, conflicts_with = "answers")]
        dismiss: bool,
        /// The result of a custom tool instead: JSON, or plain text.
        #[arg(long, value_name = "JSON", conflicts_with_all = ["answers", "dismiss"])]
        output: Option<String>,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Grant (or deny) an open approval.
    Approve {
        /// The session.
        session: String,
        /// The item; may be left out when exactly one is open.
        #[arg(long, value_name = "ID")]
        item: Option<String>,
        /// Deny it.
        #[arg(long)]
        deny: bool,
        /// Grant it with other arguments (JSON).
        #[arg(long, value_name = "JSON", conflicts_with = "deny")]
        edited_input: Option<String>,
        /// Decide the same for this tool from now on, in this session.
        #[arg(long)]
        remember: bool,
        /// Why.
        #[arg(long)]
        reason: Option<String>,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// End a session that has no live run.
    Complete {
        /// The session.
        session: String,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// End a session, whatever it does.
    Cancel {
        /// The session.
        session: String,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Change what a session may spend; what is left out stays, `none` lifts a limit.
    Budget {
        /// The session.
        session: String,
        /// Most cost, millionths of the account's currency.
        #[arg(long, value_name = "N", required_unless_present = "tokens_max")]
        cost_micros_max: Option<String>,
        /// Most input and output tokens together.
        #[arg(long, value_name = "N")]
        tokens_max: Option<String>,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// Remove a session's content for good.
    Erase {
        /// The session.
        session: String,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
}

/// How to follow.
#[derive(Debug, Clone, Args)]
pub struct FollowArgs {
    /// Begin after this position (0 = from the first event).
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    pub after: u64,
    /// Stop after the next event with which a turn settles or parks.
    #[arg(long)]
    pub until_boundary: bool,
    /// Only these types.
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    pub types: Vec<String>,
    /// Failed connections in a row before giving up.
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub retries: u32,
}

/// `longhaul deployment …`
#[derive(Debug, Subcommand)]
pub enum DeploymentCommand {
    /// Make one from a description (the body of `POST /v1/deployments`).
    Create {
        /// The file; `-` reads stdin.
        file: PathBuf,
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
    /// List them.
    List {
        /// The server.
        #[command(flatten)]
        at: ServerArgs,
    },
}

/// `longhaul token …`
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Print a new secret, once, and the line for the server's `auth.tokens_file`.
    New {
        /// Whose.
        #[arg(long, value_enum)]
        kind: TokenKind,
        /// The principal's name or the runner's id.
        #[arg(long)]
        id: String,
        /// The workspace (`ws_…` or `default`).
        #[arg(long)]
        workspace: String,
        /// What it may do: read, write, run, admin.
        #[arg(long, value_delimiter = ',', required = true)]
        scopes: Vec<String>,
        /// How long it lasts: a number and s, m, h or d.
        #[arg(long, value_name = "DURATION")]
        expires_in: Option<String>,
    },
}

/// Whose token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenKind {
    /// A person or a service.
    Principal,
    /// A runner.
    Runner,
}

/// `longhaul runner`
#[derive(Debug, Args)]
pub struct RunnerArgs {
    /// The server.
    #[command(flatten)]
    pub at: ServerArgs,
    /// Where sandboxes live.
    #[arg(long, value_name = "DIR", default_value = "longhaul-runner")]
    pub data: PathBuf,
    /// A name for people.
    #[arg(long, default_value = "runner")]
    pub name: String,
    /// Runs at once.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub capacity: u32,
    /// Deployments to serve (their current revisions); all when left out.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub deployments: Vec<String>,
}

/// `longhaul verify`
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The data folder.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

/// `longhaul load`
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Sessions, each with one claimed run.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sessions: u32,
    /// Clients that append at once; over HTTP each has a connection of its own.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub clients: u32,
    /// How long to append, all rounds together.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Bytes of one event's content.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(96..=1_048_576))]
    pub event_bytes: u64,
    /// Appends per second over all clients (open loop). Left out: as fast as it goes (closed).
    #[arg(long, value_name = "PER_S")]
    pub rate: Option<u64>,
    /// Drive this server. Left out: a runtime in this process.
    #[arg(long, value_name = "URL", conflicts_with_all = ["serve", "chaos_kill_s"])]
    pub url: Option<String>,
    /// Start a server of our own and drive it over HTTP.
    #[arg(long)]
    pub serve: bool,
    /// Start a server of our own and kill it with -9 every so many seconds.
    #[arg(long, value_name = "S")]
    pub chaos_kill_s: Option<u64>,
    /// Number every call, so that one whose answer was lost is repeated without doubling.
    #[arg(long)]
    pub numbered: bool,
    /// Rounds in which ours and the physical limits take turns; medians are printed.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Leave out the physical limits.
    #[arg(long)]
    pub no_physical: bool,
    /// Leave out the row for message intake.
    #[arg(long)]
    pub no_intake: bool,
    /// Folder for the data (ours and the physical limits'); a temporary one when left out.
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// The bearer token, where the server wants one.
    #[arg(
        long,
        value_name = "TOKEN",
        env = "LONGHAUL_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_grammar_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn settings_may_follow_one_flag_or_many() {
        let one = [
            "longhaul", "serve", "--data", "d", "--set", "a.b=1", "c.d=2",
        ];
        let many = [
            "longhaul", "serve", "--data", "d", "--set", "a.b=1", "--set", "c.d=2",
        ];
        for args in [&one[..], &many[..]] {
            let Command::Serve(serve) = Cli::try_parse_from(args).unwrap().command else {
                panic!("not serve")
            };
            assert_eq!(serve.set, ["a.b=1", "c.d=2"]);
        }
    }
}
