//! Named fault points: places where a test build can stop the process dead.
//!
//! Compiled to nothing without the `failpoints` feature. With it, [`arm`] reads the environment
//! variable `FAILPOINTS` (syntax of the `fail` crate), e.g.
//! `FAILPOINTS="writer::before_write=3*off->return"` aborts at the fourth pass.

/// The points of this crate, so that a crash test can go through all of them.
pub const POINTS: &[&str] = &[
    "open::locked",
    "open::note_removed",
    "open::stamped",
    "open::opened",
    "append::laid",
    "writer::taken",
    "writer::checked",
    "writer::before_write",
    "writer::after_write",
    "writer::after_answers",
    "purge::removed",
    "purge::flushed",
    "purge::compacted",
    "recover::emptied",
    "recover::reopened",
];

/// The points of [`snapshots`](crate::snapshots): passed only where snapshots are taken.
pub const SNAPSHOT_POINTS: &[&str] = &[
    "snapshot::created",
    "snapshot::written",
    "snapshot::synced",
    "snapshot::renamed",
    "snapshot::durable",
    "snapshot::merged",
    "snapshot::unlink",
    "snapshot::unlinked",
    "snapshot::punch",
    "snapshot::punched",
    "restore::made",
    "restore::filled",
    "restore::renamed",
];

/// Aborts the process here when the point `name` is armed with `return`.
#[inline]
pub fn point(name: &str) {
    #[cfg(feature = "failpoints")]
    {
        fail::fail_point!(name, |_| std::process::abort());
    }
    #[cfg(not(feature = "failpoints"))]
    {
        let _ = name;
    }
}

/// Arms the points that the environment names, for the rest of the process.
pub fn arm() {
    #[cfg(feature = "failpoints")]
    std::mem::forget(fail::FailScenario::setup());
}
