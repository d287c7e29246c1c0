//! Named fault points: places where a test build can stop the process dead.
//!
//! Compiled to nothing without the `failpoints` feature. With it, the environment variable
//! `FAILPOINTS` (syntax of the `fail` crate) arms them, e.g.
//! `FAILPOINTS="writer::before_sync=3*off->return"` aborts at the fourth pass.

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
