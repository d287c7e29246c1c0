//! One suite that every log engine must pass, clause by clause.
//!
//! An engine's test gives an [`Engine`] to [`run`], or walks [`all`] itself. A clause panics
//! where the engine does not keep it.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a clause fails by panicking"
)]

mod append;
mod expiry;
mod forks;
mod kit;
mod life;
mod reads;
mod rows;

use std::sync::Arc;

use crate::log::Log;

/// Opens logs of one engine.
pub trait Engine {
    /// A new, empty log.
    fn open(&self) -> Arc<dyn Log>;

    /// Closes the log and opens what it left again; `None` = the engine keeps nothing.
    fn reopen(&self, log: Arc<dyn Log>) -> Option<Arc<dyn Log>>;
}

/// One thing that every engine must do.
#[derive(Clone, Copy)]
pub struct Clause {
    /// What it must do.
    pub name: &'static str,
    /// Panics where the engine does not do it.
    pub run: fn(&dyn Engine),
}

/// All clauses.
pub fn all() -> Vec<Clause> {
    [
        append::CLAUSES,
        reads::CLAUSES,
        rows::CLAUSES,
        forks::CLAUSES,
        life::CLAUSES,
        expiry::CLAUSES,
    ]
    .concat()
}

/// Runs all clauses, and panics with the names of those that were not kept.
pub fn run(engine: &(dyn Engine + std::panic::RefUnwindSafe)) {
    let broken: Vec<_> = all()
        .into_iter()
        .filter(|clause| std::panic::catch_unwind(|| (clause.run)(engine)).is_err())
        .map(|clause| clause.name)
        .collect();
    assert!(broken.is_empty(), "clauses not kept: {broken:#?}");
}
