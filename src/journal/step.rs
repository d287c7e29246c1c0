//! Which step is meant, and how it is treated.

use std::time::Duration;

use longhaul_actors::session::step::{OnDoubt, OnFailure, StepEffects};

/// A step by name, with its options. A `&str` is one without options.
///
/// ```
/// use longhaul::journal::Step;
///
/// let step = Step::named("charge").keyed("order-7").revision("2");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub(super) name: String,
    pub(super) key: Option<String>,
    pub(super) occurrence: Option<u32>,
    pub(super) revision: String,
    pub(super) effects: StepEffects,
    pub(super) on_doubt: Option<OnDoubt>,
    pub(super) on_failure: OnFailure,
    pub(super) shows_input: bool,
}

impl Step {
    /// A step of this name: 1 to 256 bytes.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            key: None,
            occurrence: None,
            revision: String::new(),
            effects: StepEffects::External,
            on_doubt: None,
            on_failure: OnFailure::Surface,
            shows_input: false,
        }
    }

    /// Names the step by a key of 1 to 256 bytes instead of by its place: every step of the run
    /// with this key, whatever its name and branch, is the same one. In doubt it is run again
    /// unless [`Step::on_doubt`] says otherwise: give the key to the effect, too.
    #[must_use]
    pub fn keyed(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Names the occurrence instead of counting: how many steps of this name come before it on
    /// its branch. The count of the others is as if this one was not there.
    #[must_use]
    pub fn at(mut self, occurrence: u32) -> Self {
        self.occurrence = Some(occurrence);
        self
    }

    /// Revision of the code that runs it. A result of another revision does not count: it is
    /// [`JournalError::Divergence`](super::JournalError::Divergence).
    #[must_use]
    pub fn revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = revision.into();
        self
    }

    /// What it changes; [`StepEffects::External`] unless told.
    #[must_use]
    pub fn effects(mut self, effects: StepEffects) -> Self {
        self.effects = effects;
        self
    }

    /// What to do when an earlier attempt began it and said nothing more. Unless told:
    /// [`OnDoubt::Retry`] with a key or with [`StepEffects::Sandbox`], else
    /// [`OnDoubt::Surface`].
    #[must_use]
    pub fn on_doubt(mut self, on_doubt: OnDoubt) -> Self {
        self.on_doubt = Some(on_doubt);
        self
    }

    /// What to do when it failed before; [`OnFailure::Surface`] unless told.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }

    /// Writes the input into the log, for people; unless told, only its digest is.
    #[must_use]
    pub fn showing_input(mut self) -> Self {
        self.shows_input = true;
        self
    }

    pub(super) fn doubt(&self) -> OnDoubt {
        let again = self.key.is_some() || self.effects == StepEffects::Sandbox;
        self.on_doubt.unwrap_or(match again {
            true => OnDoubt::Retry,
            false => OnDoubt::Surface,
        })
    }
}

impl From<&str> for Step {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}

impl From<String> for Step {
    fn from(name: String) -> Self {
        Self::named(name)
    }
}

/// How often a failed step is tried again, and after what pause. The count goes on over attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// Tries after the first, at most.
    pub max: u32,
    /// Pause before the second try; doubled for every later one.
    pub pause: Duration,
    /// The longest pause.
    pub pause_max: Duration,
}

impl Retries {
    /// At most `max` more tries, after 100 ms, 200 ms … 10 s.
    pub const fn up_to(max: u32) -> Self {
        Self {
            max,
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(10),
        }
    }

    /// The pause after so many failures.
    pub(super) fn pause_after(&self, failures: u32) -> Duration {
        let doubled = 1_u32 << failures.saturating_sub(1).min(16);
        self.pause.saturating_mul(doubled).min(self.pause_max)
    }
}
