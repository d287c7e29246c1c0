//! A server in a process of its own: for the quickstart, for load with kills, and for tests.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use longhaul_actors::env::{Clock, SystemClock};

use super::http::Endpoint;
use crate::cli::exit::{CliError, Exit};

/// How long a start may take (a large log is read back within it).
const START_MAX: Duration = Duration::from_secs(60);
/// How long between looks at a starting server.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Ports tried when the first is taken meanwhile.
const PORTS_MAX: u32 = 5;

/// How to start it.
#[derive(Debug, Clone)]
pub struct ServerSpec {
    /// The `longhaul` program.
    pub program: PathBuf,
    /// The data folder.
    pub data: PathBuf,
    /// `--set` pairs.
    pub settings: Vec<String>,
    /// Environment.
    pub env: Vec<(String, String)>,
}

/// A running server. It is killed when this is dropped.
#[derive(Debug)]
pub struct ServerProcess {
    spec: ServerSpec,
    port: u16,
    child: Child,
}

impl ServerProcess {
    /// Starts it on a free port and waits until it is ready.
    pub async fn start(spec: ServerSpec) -> Result<Self, CliError> {
        let mut tries = 1;
        loop {
            let port = free_port()?;
            let child = spawn(&spec, port)?;
            let mut server = Self {
                spec: spec.clone(),
                port,
                child,
            };
            match server.ready().await {
                Err(e) if e.exit == Exit::AddressInUse && tries < PORTS_MAX => tries += 1,
                other => return other.map(|()| server),
            }
        }
    }

    /// Starts it again on the same port, after a kill.
    pub async fn restart(&mut self) -> Result<(), CliError> {
        self.child = spawn(&self.spec, self.port)?;
        self.ready().await
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with -9 and waits until it is gone.
    pub fn kill9(&mut self) -> Result<(), CliError> {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(|e| self.io(&e))?;
        Ok(())
    }

    /// Asks it to stop (SIGTERM) and waits for its end.
    pub async fn stop(mut self) -> Result<ExitStatus, CliError> {
        if let Some(pid) = i32::try_from(self.pid())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .map_err(|e| self.io(&e.into()))?;
        }
        let clock = SystemClock::new();
        while clock.mono() < START_MAX {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            clock.sleep_until(clock.mono() + LOOK_EVERY).await;
        }
        self.kill9()?;
        Err(CliError::failed(
            "load.server",
            "the server did not stop when asked",
        ))
    }

    /// Its exit status, once it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, CliError> {
        self.child.try_wait().map_err(|e| self.io(&e))
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(log_path(&self.spec.data)).unwrap_or_default()
    }

    async fn ready(&mut self) -> Result<(), CliError> {
        let url = self.url();
        let clock = SystemClock::new();
        let endpoint = Endpoint::parse(&url, None)
            .ok_or_else(|| CliError::failed("load.server", format!("{url} is no URL")))?;
        while clock.mono() < START_MAX {
            if let Some(status) = self.ended()? {
                return Err(self.died(status));
            }
            if let Ok(mut c) = endpoint.connect().await
                && let Ok(answer) = c.call("GET", "/readyz", b"", Duration::ZERO).await
                && answer.status == 200
            {
                return Ok(());
            }
            clock.sleep_until(clock.mono() + LOOK_EVERY).await;
        }
        Err(CliError::failed(
            "load.server",
            format!("{url} was not ready in {START_MAX:?}"),
        ))
    }

    fn died(&self, status: ExitStatus) -> CliError {
        let log = self.log();
        let last: Vec<&str> = log.lines().rev().take(8).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        let what = format!(
            "the server ended at its start ({status}):\n{}",
            last.join("\n")
        );
        let mut error = CliError::failed("load.server", what);
        let code = status.code().unwrap_or(-1);
        if let Some((exit, _)) = Exit::ALL.iter().find(|(e, _)| *e as i32 == code) {
            error.exit = *exit;
        }
        error
    }

    fn io(&self, e: &std::io::Error) -> CliError {
        CliError::io(&self.spec.program, e)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where its output goes: beside the data folder, which belongs to the server alone.
fn log_path(data: &Path) -> PathBuf {
    let mut name = data.components().as_path().as_os_str().to_owned();
    name.push(".log");
    name.into()
}

fn spawn(spec: &ServerSpec, port: u16) -> Result<Child, CliError> {
    let path = log_path(&spec.data);
    let log = File::options().create(true).append(true).open(&path);
    let log = log.map_err(|e| CliError::io(&path, &e))?;
    let again = log.try_clone().map_err(|e| CliError::io(&path, &e))?;
    let mut command = Command::new(&spec.program);
    command.arg("serve").arg("--data").arg(&spec.data);
    command.arg("--listen").arg(format!("127.0.0.1:{port}"));
    for setting in &spec.settings {
        command.arg("--set").arg(setting);
    }
    command.envs(spec.env.iter().map(|(k, v)| (k, v)));
    command.stdin(Stdio::null()).stdout(log).stderr(again);
    command.spawn().map_err(|e| CliError::io(&spec.program, &e))
}

fn free_port() -> Result<u16, CliError> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    port.map(|a| a.port())
        .map_err(|e| CliError::io(Path::new("127.0.0.1:0"), &e))
}
