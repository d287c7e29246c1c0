//! The load harness: durable appends by many clients, the machine's own limits measured in
//! turns with them, and a check of the log afterwards.
//!
//! The unit is one `agent.message` through the `events` verb of a claimed run: what an agent at
//! work does most. The harness is an external runner for that. It sets sessions up, claims their
//! runs, lets the clients append, reads every log back and compares.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use longhaul_actors::env::{Clock, SystemClock};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::cli::args::LoadArgs;
use crate::cli::exit::{CliError, Exit};
use crate::cli::output::{Output, Progress};

mod chaos;
mod check;
mod drive;
mod fleet;
pub mod http;
mod intake;
mod local;
pub mod physical;
mod report;
pub mod server;
mod target;

pub use check::Checked;
pub use report::{FdatasyncFigure, Intake, RawFigure, Report};

use drive::{Course, Tally};
use fleet::Fleet;
use http::Endpoint;
use local::Local;
use report::{median, quantile_ms};
use server::{ServerProcess, ServerSpec};
use target::Target;

/// Longest slice of a physical limit in one round.
const PHYSICAL_SLICE_MAX: Duration = Duration::from_secs(1);
/// How often progress is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(500);

/// What is running besides the clients, and must be ended.
enum Served {
    Local(Local),
    Process(ServerProcess),
    Other,
}

/// Runs one load as the arguments say.
pub async fn run(args: &LoadArgs, out: Output) -> Result<Report, CliError> {
    let (folder, temporary) = folder(args.data.as_deref())?;
    if physical::is_memory_backed(&folder) {
        out.note(format!(
            "warning: {} is memory, not a disk: the figures say nothing about durability. \
             Name a folder on a disk with --data.",
            folder.display()
        ));
    }
    let (served, target, mode) = serve(args, &folder).await?;
    let bar = out.progress(Some(u64::from(args.sessions)), "sessions");
    let fleet = Fleet::muster(target, args.sessions as usize, &bar).await?;
    bar.done();
    let beat = tokio::spawn(Arc::clone(&fleet).beat());
    let result = measure_and_check(args, out, &folder, &fleet, served, mode).await;
    beat.abort();
    let (report, served) = result?;
    fleet.disband().await;
    match served {
        Served::Local(local) => local.close().await,
        Served::Process(server) => drop(server.stop().await?),
        Served::Other => {}
    }
    // The evidence of a fault is not thrown away.
    if !report.checked.is_clean()
        && let Some(temporary) = temporary
    {
        out.note(format!(
            "the data is kept in {}",
            temporary.keep().display()
        ));
    }
    Ok(report)
}

/// The folder for everything on disk; a temporary one goes with its guard.
fn folder(data: Option<&Path>) -> Result<(PathBuf, Option<tempfile::TempDir>), CliError> {
    match data {
        Some(data) => {
            std::fs::create_dir_all(data).map_err(|e| CliError::io(data, &e))?;
            Ok((data.to_owned(), None))
        }
        None => {
            let made = tempfile::Builder::new().prefix("longhaul-load-").tempdir();
            let made = made.map_err(|e| CliError::io(&std::env::temp_dir(), &e))?;
            Ok((made.path().to_owned(), Some(made)))
        }
    }
}

async fn serve(args: &LoadArgs, folder: &Path) -> Result<(Served, Target, &'static str), CliError> {
    if let Some(url) = &args.url {
        let endpoint = endpoint(url, args.token.as_deref())?;
        return Ok((Served::Other, Target::There(endpoint), "http"));
    }
    if !args.serve && args.chaos_kill_s.is_none() {
        let local = Local::open(&folder.join("data"), args).await?;
        return Ok((
            Served::Local(local.clone()),
            Target::Here(local),
            "in_process",
        ));
    }
    let program = std::env::current_exe().map_err(|e| CliError::io(Path::new("longhaul"), &e))?;
    let settings = vec!["runner.enabled=false".to_owned()];
    let spec = ServerSpec {
        program,
        data: folder.join("data"),
        settings,
        env: Vec::new(),
    };
    let server = ServerProcess::start(spec).await?;
    let endpoint = endpoint(&server.url(), None)?;
    let mode = if args.chaos_kill_s.is_some() {
        "chaos"
    } else {
        "http"
    };
    Ok((Served::Process(server), Target::There(endpoint), mode))
}

fn endpoint(url: &str, token: Option<&str>) -> Result<Endpoint, CliError> {
    Endpoint::parse(url, token)
        .ok_or_else(|| CliError::usage(format!("--url {url:?} is not http://HOST:PORT")))
}

async fn measure_and_check(
    args: &LoadArgs,
    out: Output,
    folder: &Path,
    fleet: &Arc<Fleet>,
    served: Served,
    mode: &'static str,
) -> Result<(Report, Served), CliError> {
    let course = Arc::new(course(args, fleet));
    let mut clients = JoinSet::new();
    for id in 0..args.clients {
        clients.spawn(drive::client(Arc::clone(&course), id));
    }
    let bar = out.progress(Some(args.seconds), "appending");
    let mut figures = Figures::default();
    let (served, kills) = match (served, args.chaos_kill_s) {
        (Served::Process(server), Some(every)) => {
            let every = Duration::from_secs(every.max(1));
            let (server, kills) =
                under_fire(args, &course, server, every, &bar, &mut figures).await?;
            (Served::Process(server), kills)
        }
        (served, _) => {
            in_turns(args, &course, folder, &bar, &mut figures).await?;
            (served, 0)
        }
    };
    bar.done();
    let tallies = finish(&course, clients).await?;
    let intake = if args.no_intake {
        None
    } else {
        let time = Duration::from_secs(args.seconds.div_ceil(5).min(5));
        Some(intake::measure(fleet, args.clients, args.event_bytes as usize, time).await?)
    };
    let bar = out.progress(Some(u64::from(args.sessions)), "checking the logs");
    let checked = check::check(fleet, &tallies, &bar).await?;
    bar.done();
    Ok((
        summary(args, mode, figures, tallies, intake, checked, kills)?,
        served,
    ))
}

fn course(args: &LoadArgs, fleet: &Arc<Fleet>) -> Course {
    let every = match args.rate {
        Some(rate) if rate > 0 => Duration::from_secs_f64(f64::from(args.clients) / rate as f64),
        _ => Duration::ZERO,
    };
    // Numbering needs one caller per claim.
    let one_each = args.clients <= args.sessions;
    Course {
        fleet: Arc::clone(fleet),
        clients: args.clients,
        numbered: one_each && (args.numbered || args.chaos_kill_s.is_some()),
        every,
        event_bytes: args.event_bytes as usize,
        acked: AtomicU64::new(0),
        gate: Semaphore::new(0),
        hold: AtomicBool::new(false),
        stop: AtomicBool::new(false),
    }
}

/// What the rounds measured.
#[derive(Default)]
struct Figures {
    ours: Vec<f64>,
    raw: Vec<f64>,
    fdatasync: Vec<f64>,
    fdatasync_ms: Vec<f64>,
    seconds: f64,
}

/// Ours and the physical limits, in turns.
async fn in_turns(
    args: &LoadArgs,
    course: &Arc<Course>,
    folder: &Path,
    bar: &Progress,
    figures: &mut Figures,
) -> Result<(), CliError> {
    let slice = Duration::from_secs(args.seconds) / args.rounds;
    let physical_slice = slice.min(PHYSICAL_SLICE_MAX);
    let raw = match args.no_physical {
        true => None,
        false => Some(physical::Raw::open(folder, args.event_bytes as usize)?),
    };
    let mut permits = None;
    for round in 1..=args.rounds {
        course.go(permits.take());
        let rate = slice_of(course, slice, bar, figures).await;
        permits = Some(course.halt().await?);
        figures.ours.push(rate);
        let Some(raw) = &raw else { continue };
        figures.raw.push(raw.measure(physical_slice).await);
        let dir = folder.to_owned();
        let bare =
            tokio::task::spawn_blocking(move || physical::fdatasync_loop(&dir, physical_slice / 2));
        let bare = bare
            .await
            .map_err(|e| CliError::failed("load.physical", e.to_string()))??;
        figures.fdatasync.push(bare.per_s);
        figures.fdatasync_ms.push(bare.p50_ms);
        let (ours, raw) = (rate, figures.raw.last().copied().unwrap_or(0.0));
        bar.say(format!(
            "round {round}: {ours:.0} appends/s, raw {raw:.0}/s, fdatasync {:.0}/s",
            bare.per_s
        ));
    }
    // Nobody waits at the gate for ever: they see the stop.
    course.stop.store(true, Ordering::SeqCst);
    drop(permits);
    if let Some(raw) = raw {
        let closed = tokio::task::spawn_blocking(move || raw.close());
        closed
            .await
            .map_err(|e| CliError::failed("load.physical", e.to_string()))??;
    }
    Ok(())
}

/// One slice of ours: appends per second.
async fn slice_of(course: &Course, slice: Duration, bar: &Progress, figures: &mut Figures) -> f64 {
    let clock = SystemClock::new();
    let before = course.acked.load(Ordering::Relaxed);
    let mut drawn = before;
    loop {
        let left = slice.saturating_sub(clock.mono());
        if left.is_zero() {
            break;
        }
        let step = left.min(DRAW_EVERY);
        clock.sleep_until(clock.mono() + step).await;
        let now = course.acked.load(Ordering::Relaxed);
        bar.at((figures.seconds + clock.mono().as_secs_f64()) as u64);
        bar.message(format!(
            "{:.0}/s",
            now.saturating_sub(drawn) as f64 / step.as_secs_f64()
        ));
        drawn = now;
    }
    let took = clock.mono().as_secs_f64();
    figures.seconds += took;
    course.acked.load(Ordering::Relaxed).saturating_sub(before) as f64 / took
}

/// Ours while the server is killed again and again.
async fn under_fire(
    args: &LoadArgs,
    course: &Arc<Course>,
    server: ServerProcess,
    every: Duration,
    bar: &Progress,
    figures: &mut Figures,
) -> Result<(ServerProcess, u64), CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    let killer = tokio::spawn(chaos::kill_again_and_again(
        server,
        every,
        Arc::clone(&stop),
        bar.clone(),
    ));
    course.go(None);
    let slice = Duration::from_secs(args.seconds);
    let rate = slice_of(course, slice, bar, figures).await;
    figures.ours.push(rate);
    stop.store(true, Ordering::SeqCst);
    course.stop.store(true, Ordering::SeqCst);
    killer
        .await
        .map_err(|e| CliError::failed("load.chaos", e.to_string()))?
}

async fn finish(
    course: &Course,
    mut clients: JoinSet<Result<Tally, CliError>>,
) -> Result<Vec<Tally>, CliError> {
    course.stop.store(true, Ordering::SeqCst);
    let mut tallies = Vec::new();
    while let Some(tally) = clients.join_next().await {
        tallies.push(tally.map_err(|e| CliError::failed("load.client", e.to_string()))??);
    }
    Ok(tallies)
}

fn summary(
    args: &LoadArgs,
    mode: &'static str,
    figures: Figures,
    tallies: Vec<Tally>,
    intake: Option<Intake>,
    checked: Checked,
    kills: u64,
) -> Result<Report, CliError> {
    let mut times = physical::histogram();
    for tally in &tallies {
        times
            .add(&tally.times)
            .map_err(|e| CliError::failed("load.report", e.to_string()))?;
    }
    let ratios: Vec<f64> = figures
        .ours
        .iter()
        .zip(&figures.raw)
        .map(|(ours, raw)| ours / raw)
        .collect();
    let physical = !figures.raw.is_empty();
    Ok(Report {
        mode,
        sessions: args.sessions,
        clients: args.clients,
        seconds: figures.seconds,
        event_bytes: args.event_bytes,
        rate: args.rate,
        numbered: args.numbered || args.chaos_kill_s.is_some(),
        appends_per_s: median(&figures.ours),
        p50_ms: quantile_ms(&times, 0.5),
        p99_ms: quantile_ms(&times, 0.99),
        p999_ms: quantile_ms(&times, 0.999),
        max_ms: times.max() as f64 / 1000.0,
        raw: physical.then(|| RawFigure {
            appends_per_s: median(&figures.raw),
        }),
        fdatasync: physical.then(|| FdatasyncFigure {
            per_s: median(&figures.fdatasync),
            p50_ms: median(&figures.fdatasync_ms),
        }),
        ratio_to_raw: physical.then(|| median(&ratios)),
        intake,
        checked,
        kills,
        repeated: tallies.iter().map(|t| t.repeated).sum(),
        rounds: figures.ours,
    })
}

/// The error of a run whose check found faults.
pub(crate) fn verdict(report: &Report) -> Result<(), CliError> {
    if report.checked.is_clean() {
        return Ok(());
    }
    let detail = "the log is not what was acknowledged; see `checked`";
    let next = "Keep the data folder and run `longhaul verify` on it.";
    Err(CliError::new(
        Exit::Damaged,
        "load.check_failed",
        detail,
        next,
    ))
}
