//! What all requests of a server share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_actors::code::Code;
use longhaul_actors::session::payload::WorkspaceRef;
use tokio::sync::Semaphore;

use crate::auth::{Caller, Gate};
use crate::runtime::Runtime;

pub(super) struct Api {
    pub(super) runtime: Runtime,
    /// Whether there are no tokens.
    pub(super) open: bool,
    /// The caller of a server without tokens, in the default workspace.
    pub(super) dev: Arc<Caller>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) counters: Counters,
}

impl Api {
    pub(super) fn new(runtime: Runtime) -> Self {
        Self {
            open: matches!(runtime.gate(), Gate::Open),
            dev: Arc::new(Caller::dev(WorkspaceRef::DEFAULT)),
            streams: Arc::new(Semaphore::new(runtime.config().http.streams_max)),
            counters: Counters::new(),
            runtime,
        }
    }
}

/// Answers by status class and refusals by code. Plain atomics: a hot path only adds.
pub(super) struct Counters {
    by_class: [AtomicU64; 6],
    by_code: Vec<AtomicU64>,
}

impl Counters {
    fn new() -> Self {
        Self {
            by_class: Default::default(),
            by_code: Code::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
        }
    }

    pub(super) fn answered(&self, status: u16) {
        if let Some(counter) = self.by_class.get(usize::from(status / 100)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn refused(&self, code: Code) {
        let index = Code::ALL.iter().position(|c| *c == code);
        if let Some(counter) = index.and_then(|i| self.by_code.get(i)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As Prometheus text.
    pub(super) fn render(&self, out: &mut String) {
        out.push_str("# TYPE longhaul_http_responses_total counter\n");
        for (class, counter) in self.by_class.iter().enumerate().skip(1) {
            let n = counter.load(Ordering::Relaxed);
            out.push_str(&format!(
                "longhaul_http_responses_total{{class=\"{class}xx\"}} {n}\n"
            ));
        }
        out.push_str("# TYPE longhaul_http_problems_total counter\n");
        for (code, counter) in Code::ALL.iter().zip(&self.by_code) {
            let n = counter.load(Ordering::Relaxed);
            if n > 0 {
                let code = code.text();
                out.push_str(&format!(
                    "longhaul_http_problems_total{{code=\"{code}\"}} {n}\n"
                ));
            }
        }
    }
}
