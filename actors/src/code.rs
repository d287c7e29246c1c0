//! Every error code of the product, in one table: what it means and what the caller should do.

use serde_json::{Map, Value};

/// What a caller should make of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong or not allowed; the same request will be refused again.
    Refused,
    /// A queue or an allowance is full; the same request may be taken later.
    Full,
    /// A part of the system is stopped or starting.
    Stopped,
    /// The system failed.
    Fault,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Info {
    /// `area.reason`, stable.
    pub code: &'static str,
    /// HTTP status. Codes that appear only as the error of a run have 0.
    pub status: u16,
    /// What to make of it.
    pub kind: Kind,
    /// One short sentence.
    pub title: &'static str,
    /// What to do next.
    pub next: &'static str,
}

macro_rules! codes {
    ($($name:ident = $code:literal, $status:literal, $kind:ident, $title:literal, $next:literal;)*) => {
        /// An error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $title] $name,)*
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// Its row.
            pub const fn info(self) -> Info {
                match self {
                    $(Code::$name => Info {
                        code: $code, status: $status, kind: Kind::$kind, title: $title, next: $next,
                    },)*
                }
            }
        }
    };
}

codes! {
    BodyInvalid = "request.body_invalid", 400, Refused, "The body is not the JSON it should be.", "Send valid JSON: depth at most 128, no duplicate keys, no lone surrogates.";
    IdInvalid = "request.id_invalid", 400, Refused, "An id has the wrong form.", "Use ids as the server gave them.";
    CursorInvalid = "request.cursor_invalid", 400, Refused, "The cursor is no position.", "Use a `seq` or a `next_…` that was given: digits only. A list after the last position is an empty page; a stream starts at `last_seq` at most.";
    QueryInvalid = "request.query_invalid", 400, Refused, "A query parameter is unknown or has a bad value.", "See the route's parameters in /openapi.json.";
    HeaderInvalid = "request.header_invalid", 400, Refused, "A header has a bad value.", "Correct the header that `detail` names.";
    RouteUnknown = "request.route_unknown", 404, Refused, "There is no such route.", "See /openapi.json for the routes.";
    MethodUnknown = "request.method_not_allowed", 405, Refused, "The route does not take this method.", "See /openapi.json for the route's methods.";
    RequestTimeout = "request.timeout", 408, Refused, "The request did not arrive in time.", "Send it again.";
    BodyTooLarge = "request.body_too_large", 413, Refused, "The body is larger than the limit.", "Send less at once; `bytes_max` is the limit.";
    ContentType = "request.content_type", 415, Refused, "POST, PUT and PATCH need content-type: application/json.", "Set the header.";
    FieldUnknown = "request.field_unknown", 422, Refused, "The body has a field that is not known here.", "Remove or correct the field that `detail` names.";
    FieldInvalid = "request.field_invalid", 422, Refused, "A field is missing or has a bad value.", "Correct the field that `detail` names.";
    IdempotencyConflict = "request.idempotency_conflict", 409, Refused, "The Idempotency-Key was used with another body.", "Use a new key for a new request.";
    OriginRefused = "request.origin_refused", 403, Refused, "Without tokens, only loopback origins and hosts are served.", "Call from the same machine, or configure tokens.";
    TokenMissing = "auth.token_missing", 401, Refused, "A bearer token is needed.", "Send `Authorization: Bearer …`.";
    TokenInvalid = "auth.token_invalid", 401, Refused, "The bearer token is unknown or expired.", "Ask for a new token.";
    ScopeMissing = "auth.scope_missing", 403, Refused, "The token lacks a scope.", "Ask for a token with the scope that `detail` names.";

    SessionNotFound = "session.not_found", 404, Refused, "There is no such session here.", "Check the id and the workspace.";
    SessionErased = "session.erased", 410, Refused, "The session was erased.", "Nothing is left to read; start a new session.";
    SessionTerminal = "session.terminal", 409, Refused, "The session has ended.", "Start a new session.";
    SessionRunLive = "session.run_live", 409, Refused, "A run is live.", "Wait for its end, interrupt it, or cancel the session.";
    SessionTransition = "session.transition_refused", 409, Refused, "The session's status does not allow this.", "See `longhaul transitions`.";
    SequenceConflict = "session.sequence_conflict", 409, Refused, "The log is not where If-Match expected it.", "Read the new events, then decide again.";
    EventLimit = "session.event_limit", 409, Refused, "The session's log has its most events.", "Go on in a new session; cancel and erase still work.";
    UntakenInputs = "session.untaken_inputs_full", 429, Full, "Too many messages wait to be taken by a run.", "Wait for a run to take them.";
    SignalsFull = "session.signals_full", 429, Full, "Too many signals wait to be consumed.", "Wait for a run to consume them.";
    MetadataInvalid = "session.metadata_invalid", 422, Refused, "The metadata is over its limits.", "At most 16 pairs, keys of 64 bytes, scalar values of 512 bytes.";
    SessionDamaged = "session.damaged", 500, Fault, "The session's log does not verify.", "Run `longhaul verify`; restore from a backup.";

    EventTypeUnknown = "event.type_unknown", 422, Refused, "There is no such event type.", "See the event types in the documentation.";
    EventTypeReserved = "event.type_reserved", 403, Refused, "This event type is not written from here.", "People write user.*, runners agent.* and usage.recorded.";
    BatchEmpty = "event.batch_empty", 422, Refused, "A submission needs at least one event.", "Send 1 to 100 events.";
    BlobTooLarge = "checkpoint.blob_too_large", 413, Refused, "The resume blob is larger than 1 MiB.", "Keep large state in the sandbox's files.";
    BatchTooLarge = "event.batch_too_large", 413, Refused, "The submission has too many events or bytes.", "Send at most 100 events and 4 MiB at once.";
    EventTooLarge = "event.too_large", 413, Refused, "The event's content is larger than 1 MiB.", "Store large values elsewhere and refer to them.";
    EventNotFound = "event.not_found", 404, Refused, "There is no such event in this session.", "Use an event id of this session's log.";
    ToolUseUnknown = "event.tool_use_unknown", 422, Refused, "A tool result needs its tool use earlier in the log.", "Write the agent.tool_use first and refer to its id.";
    ItemNotFound = "item.not_found", 404, Refused, "There is no such item in this session.", "Use the id of the event that opened the item.";
    ItemNotOpen = "item.not_open", 409, Refused, "The item is not open.", "It was answered, closed or never opened; see `state`.";
    ItemAmbiguous = "item.ambiguous", 422, Refused, "Several items are open and the answer names none.", "Name one of `open_item_ids`.";
    ItemsFull = "item.limit", 409, Refused, "The session has its most open items.", "Close items before opening more.";

    ParkWithoutCause = "run.park_without_cause", 422, Refused, "A park needs something outside the run to wait for.", "Name an open question, approval, custom tool use, a signal or the budget.";
    AlreadySettled = "run.already_settled", 409, Refused, "The run was settled with another outcome.", "Keep the first outcome; see `outcome`.";
    JournalDivergence = "journal.divergence", 409, Refused, "The step was begun with another input before.", "Make the steps of a chain the same in each attempt; change code only for new runs.";
    JournalValueUnavailable = "journal.value_unavailable", 409, Refused, "The step has ended, and its value cannot be read any more.", "Fail the run; its value was erased, has expired, or was never kept.";
    StepNotFound = "step.not_found", 404, Refused, "There is no such step in this journal.", "Use the `step_id` that begin answered, in the same chain of runs.";
    StepNotOpen = "step.not_open", 409, Refused, "The step is not in the state that this operation needs.", "See `state`: begin it again, or resolve it.";
    StepsFull = "step.limit", 409, Refused, "The run has its most open steps.", "Complete or fail steps before beginning more.";
    BudgetExceeded = "run.budget_exceeded", 409, Refused, "The session's budget is spent.", "Record, park on the budget, or settle; raising the budget goes on.";
    OutOfOrder = "claim.out_of_order", 409, Refused, "`n` must be the last one plus 1, or one seen before.", "Send the calls of a claim in order; see `expected`.";
    ClaimNotFound = "claim.not_found", 404, Refused, "There is no such claim.", "Claim a run first.";
    ClaimNotReady = "claim.not_ready", 409, Refused, "The attempt is not in the state that this call needs.", "Call ready first; while waiting, poll inputs.";
    ClaimLost = "runtime.claim_lost", 409, Refused, "The claim is no longer valid; nothing was written.", "Stop working on this attempt; `reason` says why.";

    TurnDeadline = "runtime.turn_deadline_exceeded", 0, Refused, "The attempt ran past its absolute deadline.", "Raise max_duration_seconds, or do less in one turn.";
    AttemptsExhausted = "runtime.attempts_exhausted", 0, Fault, "Every attempt was lost.", "Look at the runner's log; send a message to try again.";
    HistoryUnavailable = "runtime.session_history_unavailable", 409, Refused, "Positions of the history cannot be read.", "See `missing`.";
    CheckpointNotFound = "checkpoint.not_found", 404, Refused, "There is no such checkpoint here.", "List the session's checkpoints; old ones are pruned.";
    PruneFilterEmpty = "prune.filter_empty", 422, Refused, "Nothing says what is to be pruned.", "Send `before`, `session_id` or both.";
    CheckpointsPinned = "checkpoint.pinned_limit", 409, Refused, "The session has its most pinned checkpoints.", "Unpin one first.";
    CheckpointExpired = "runtime.checkpoint_expired", 409, Refused, "The checkpoint's time is over.", "Fork from its event instead: the conversation is still there.";
    CheckpointRejected = "runtime.checkpoint_rejected", 409, Refused, "The checkpoint does not verify.", "Use another one, or fork from its event.";
    SnapshotDeleted = "runtime.snapshot_deleted", 409, Refused, "The checkpoint's snapshot was deleted.", "Use another one, or fork from its event.";
    SnapshotUnreadable = "runtime.snapshot_unreadable", 503, Stopped, "The checkpoint's snapshot, or the folder of snapshots, cannot be used now.", "Try again; `detail` names it and the file. Nothing was rejected.";
    SnapshotRefused = "snapshot.refused", 409, Refused, "The files cannot be kept as a snapshot.", "`detail` names the file that may not be read, or the limit; change the files.";
    NoEligibleRunner = "runtime.no_eligible_runner", 409, Refused, "No live runner can reach the checkpoint's snapshot.", "Start the runner that took it, or fork from its event.";
    CloneTimeout = "runtime.clone_timeout", 504, Stopped, "No runner adopted the fork's disk in time.", "Try again; nothing was made.";
    ZeroDataRetention = "runtime.zero_data_retention", 409, Refused, "The workspace keeps nothing, so there are no checkpoints.", "Use a workspace without zero_data_retention.";
    SessionBusy = "runtime.session_busy", 409, Full, "A turn or another operation is under way.", "Try again after Retry-After.";
    AlreadyPaused = "runtime.already_paused", 409, Refused, "The runtime is paused already.", "Resume it first.";
    NotPaused = "runtime.not_paused", 409, Refused, "The runtime is not paused.", "Only a paused runtime is resumed; a parked run is answered.";
    RuntimePaused = "runtime.paused", 409, Refused, "The runtime is paused.", "Resume it first.";
    UnsupportedBackend = "runtime.unsupported_backend", 501, Refused, "The session's sandbox cannot do that here.", "Use a `dir` sandbox of the server's own runner.";
    OperationTimeout = "runtime.operation_timeout", 504, Stopped, "The operation took too long.", "Try again with less to do.";
    SnapshotShared = "snapshot.shared", 409, Refused, "Other live checkpoints share the snapshot.", "Say `force: true` to delete it for all of `checkpoint_ids`.";
    SandboxPathInvalid = "sandbox.path_invalid", 422, Refused, "The path does not lead to a place inside the sandbox.", "Use a path relative to the sandbox's root, not through links that lead out.";
    SandboxNotFound = "sandbox.not_found", 404, Refused, "There is no such file in the sandbox.", "List the folder.";
    SandboxTooLarge = "sandbox.file_too_large", 413, Refused, "The file is larger than the limit.", "Read it in parts with a command.";
    SandboxGone = "sandbox.gone", 503, Stopped, "The session's sandbox is gone; nothing was done.", "Try again: the next operation begins from the newest checkpoint.";
    SandboxFailed = "sandbox.failed", 500, Fault, "The sandbox failed.", "See `detail`.";
    CloneFailed = "runtime.clone_failed", 502, Fault, "The runner could not copy the fork's disk.", "See `detail`; try again, or fork from the event.";
    CloneNotFound = "clone.not_found", 404, Refused, "There is no such clone.", "It was answered, or nobody waits for it any more.";
    Busy = "runtime.busy", 503, Full, "A queue inside the server is full.", "Try again after Retry-After.";
    Stopped = "runtime.stopped", 503, Stopped, "The server, or a part it needs, is stopped.", "Try again later, or on another server.";
    Internal = "runtime.internal", 500, Fault, "The server failed.", "Report it with the request id.";
    StorageFull = "storage.full", 507, Stopped, "The disk is full; nothing was written.", "Make room; writes return by themselves.";
    StorageUnavailable = "storage.unavailable", 503, Stopped, "The log is being reopened.", "Try again after Retry-After.";
    OutcomeUnknown = "storage.outcome_unknown", 500, Fault, "It is not known whether the write is durable.", "Read the log, or repeat with the same Idempotency-Key.";

    WorkspaceNotFound = "workspace.not_found", 404, Refused, "There is no such workspace.", "Create it first.";
    PolicyInvalid = "workspace.policy_invalid", 422, Refused, "The workspace policy has a bad value.", "See the limits in the documentation.";
    DeploymentNotFound = "deployment.not_found", 404, Refused, "There is no such deployment here.", "Check the id and the workspace.";
    RevisionNotFound = "deployment.revision_not_found", 404, Refused, "The deployment has no such revision.", "List its revisions.";
    DeploymentInvalid = "deployment.invalid", 422, Refused, "The deployment describes nothing that can run.", "Correct the field that `detail` names.";
    RunnerNotFound = "runner.not_found", 404, Refused, "There is no such runner here.", "Enrol it with POST /v1/runners.";
    RunnerDraining = "runner.draining", 409, Refused, "A draining runner gets no claims.", "Enrol a new runner.";
    StreamsFull = "stream.limit", 429, Full, "Too many streams are open.", "Close some, or try again after Retry-After.";
}

impl Code {
    /// The stable text.
    pub const fn text(self) -> &'static str {
        self.info().code
    }

    /// Whether the very same request may succeed later.
    pub const fn is_retryable(self) -> bool {
        matches!(self.info().kind, Kind::Full | Kind::Stopped)
    }
}

/// A refusal or failure with its code, ready for a caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {detail}", code.text())]
pub struct Rejection {
    /// The code.
    pub code: Code,
    /// What was wrong this time.
    pub detail: String,
    /// Typed extras (`reason`, `expected`, `open_item_ids`…).
    pub extras: Map<String, Value>,
}

impl Rejection {
    /// A rejection with its particulars.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            extras: Map::new(),
        }
    }

    /// A rejection that the table's own sentence explains.
    pub fn plain(code: Code) -> Self {
        Self::new(code, code.info().title)
    }

    /// Adds a typed extra.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extras.insert(key.to_owned(), value.into());
        self
    }
}

impl From<Code> for Rejection {
    fn from(code: Code) -> Self {
        Self::plain(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_are_unique_and_well_formed() {
        let mut seen = HashSet::new();
        for code in Code::ALL {
            let info = code.info();
            assert!(seen.insert(info.code), "{} twice", info.code);
            let (area, reason) = info.code.split_once('.').expect("area.reason");
            assert!(!area.is_empty() && !reason.is_empty());
            assert!(info.status == 0 || (400..600).contains(&info.status));
        }
    }
}
