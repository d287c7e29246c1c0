//! What a step's operation is answered with.

use bincode::{Decode, Encode};
use bytes::Bytes;

use super::StepValue;
use crate::ids::{EventId, RunId};
use crate::session::payload::RunError;
use crate::session::payload::step::{write_event_ids, write_value};

/// The answer to a call of `steps`, before the values are read.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StepsReply {
    /// Whether a list was asked, so that a list answers.
    pub many: bool,
    /// One for each operation.
    pub answers: Vec<StepAnswer>,
}

/// The answer to one operation, as decided. Values stay in their events: answers are kept, and
/// would repeat them.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum StepAnswer {
    /// It is to run now.
    Execute {
        /// The step.
        step: EventId,
    },
    /// It has run: the value is in the event at `done_seq`.
    Completed {
        /// The step.
        step: EventId,
        /// Position of its `step.completed`.
        done_seq: u64,
    },
    /// It has failed: the error is in the event at `done_seq`.
    Failed {
        /// The step.
        step: EventId,
        /// Position of its `step.failed`.
        done_seq: u64,
        /// How often it failed so far.
        failures: u32,
    },
    /// It was begun by this attempt already.
    InProgress {
        /// The step.
        step: EventId,
    },
    /// It was begun by an earlier attempt, which never said how it ended.
    InDoubt {
        /// The step.
        step: EventId,
        /// That attempt.
        started_attempt: u32,
        /// Its run.
        started_run: RunId,
    },
    /// What was said of it is kept.
    Recorded(StepRecorded),
}

/// What was kept of a step.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct StepRecorded {
    /// The step.
    pub step: EventId,
    /// Whether it failed.
    pub failed: bool,
    /// How often it failed so far.
    pub failures: u32,
    /// The events written with it.
    pub event_ids: Vec<EventId>,
    /// Whether the budget is spent, with what this step cost.
    pub budget_exceeded: bool,
}

/// The answer to one operation, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepResult {
    /// It is to run now.
    Execute {
        /// The step.
        step: EventId,
    },
    /// It has run, with this value.
    Completed {
        /// The step.
        step: EventId,
        /// What it gave.
        value: StepValue,
        /// The events written with it.
        event_ids: Vec<EventId>,
    },
    /// It has failed.
    Failed {
        /// The step.
        step: EventId,
        /// Why.
        error: RunError,
        /// What came before it failed, JSON.
        partial: Option<Bytes>,
        /// How often it failed so far.
        failures: u32,
    },
    /// It was begun by this attempt already.
    InProgress {
        /// The step.
        step: EventId,
    },
    /// It was begun by an earlier attempt, which never said how it ended.
    InDoubt {
        /// The step.
        step: EventId,
        /// That attempt.
        started_attempt: u32,
        /// Its run.
        started_run: RunId,
    },
    /// What was said of it is kept.
    Recorded(StepRecorded),
}

impl StepAnswer {
    /// The event that has its value, where it has one.
    pub fn value_seq(&self) -> Option<u64> {
        match self {
            Self::Completed { done_seq, .. } | Self::Failed { done_seq, .. } => Some(*done_seq),
            _ => None,
        }
    }

    /// The answer, if nothing has to be read for it.
    pub fn plain(&self) -> Option<StepResult> {
        Some(match self {
            Self::Completed { .. } | Self::Failed { .. } => return None,
            Self::Execute { step } => StepResult::Execute { step: *step },
            Self::InProgress { step } => StepResult::InProgress { step: *step },
            Self::InDoubt {
                step,
                started_attempt,
                started_run,
            } => StepResult::InDoubt {
                step: *step,
                started_attempt: *started_attempt,
                started_run: *started_run,
            },
            Self::Recorded(r) => StepResult::Recorded(r.clone()),
        })
    }
}

/// The answer on the wire: one object, or `{results}`.
pub(crate) fn body(many: bool, results: &[StepResult]) -> Bytes {
    let mut out = Vec::with_capacity(results.len() * 128 + 16);
    if many {
        out.extend_from_slice(b"{\"results\":[");
    }
    for (index, result) in results.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        result.write(&mut out);
    }
    if many {
        out.extend_from_slice(b"]}");
    }
    out.into()
}

impl StepResult {
    fn step(&self) -> (&'static str, EventId) {
        match self {
            Self::Execute { step } => ("execute", *step),
            Self::Completed { step, .. } => ("completed", *step),
            Self::Failed { step, .. } => ("failed", *step),
            Self::InProgress { step } => ("in_progress", *step),
            Self::InDoubt { step, .. } => ("in_doubt", *step),
            Self::Recorded(r) if r.failed => ("failed", r.step),
            Self::Recorded(r) => ("completed", r.step),
        }
    }

    /// Writes the JSON object. Values go in as they are: they were checked when they came.
    fn write(&self, out: &mut Vec<u8>) {
        let (state, step) = self.step();
        let mut text = format!("{{\"state\":\"{state}\",\"step_id\":\"{step}\"");
        match self {
            Self::Execute { .. } | Self::InProgress { .. } => {}
            Self::InDoubt {
                started_attempt,
                started_run,
                ..
            } => text.push_str(&format!(
                ",\"started_attempt\":{started_attempt},\"started_run_id\":\"{started_run}\""
            )),
            Self::Recorded(r) => {
                if r.failed {
                    text.push_str(&format!(",\"failures\":{}", r.failures));
                }
                if r.budget_exceeded {
                    text.push_str(",\"budget_exceeded\":true");
                }
                out.extend_from_slice(text.as_bytes());
                write_event_ids(out, &r.event_ids);
                out.push(b'}');
                return;
            }
            Self::Completed {
                value, event_ids, ..
            } => {
                out.extend_from_slice(text.as_bytes());
                write_value(out, value);
                if !event_ids.is_empty() {
                    write_event_ids(out, event_ids);
                }
                out.push(b'}');
                return;
            }
            Self::Failed {
                error,
                partial,
                failures,
                ..
            } => {
                // A plain struct of strings: serialising it has no failing case.
                let error = serde_json::to_string(error).unwrap_or_default();
                text.push_str(&format!(",\"failures\":{failures},\"error\":{error}"));
                if let Some(partial) = partial {
                    out.extend_from_slice(text.as_bytes());
                    out.extend_from_slice(b",\"partial\":");
                    out.extend_from_slice(partial);
                    out.push(b'}');
                    return;
                }
            }
        }
        text.push('}');
        out.extend_from_slice(text.as_bytes());
    }
}
