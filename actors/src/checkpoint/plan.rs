//! The one answer to "how does this run continue", from projections alone.

use crate::session::payload::{RebuildReason, ResumePlan};

/// What a plan depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Past {
    /// Whether any attempt of the session was ever ready.
    pub ever_started: bool,
}

/// The plan of a run that is about to be claimed.
pub fn plan(past: &Past) -> ResumePlan {
    if past.ever_started {
        ResumePlan::EventLogRebuild {
            reason: RebuildReason::NoCheckpoint,
        }
    } else {
        ResumePlan::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_run_is_fresh_and_later_ones_rebuild() {
        assert_eq!(
            plan(&Past {
                ever_started: false
            }),
            ResumePlan::Fresh
        );
        let rebuild = ResumePlan::EventLogRebuild {
            reason: RebuildReason::NoCheckpoint,
        };
        assert_eq!(plan(&Past { ever_started: true }), rebuild);
    }
}
