//! The OpenAPI document, generated from the handlers and the types they read.

use utoipa::{OpenApi, ToSchema};

use super::{
    claims, clones, deployments, events, forks, operations, prune, resume, runners, runtimes,
    sessions, stream, transcript, workspaces,
};

/// `application/problem+json`.
#[derive(ToSchema)]
#[schema(as = Problem)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct ProblemSchema {
    /// HTTP status.
    status: u16,
    /// `area.reason`; see docs/errors.md.
    code: String,
    /// What the code means.
    title: String,
    /// What was wrong this time.
    detail: String,
    /// Whether the very same request may succeed later.
    retryable: bool,
    /// Also in the header x-request-id.
    request_id: String,
}

/// `POST /v1/sessions`.
#[derive(ToSchema)]
#[schema(as = NewSession)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct NewSessionSchema {
    /// A `dep_` id.
    agent_deployment: String,
    /// Absent = the newest now; never followed later.
    agent_deployment_revision_number: Option<u32>,
    /// Who the session acts as; absent = the caller.
    principal: Option<String>,
    /// First events.
    events: Option<Vec<EventSchema>>,
    /// Pairs of the caller's.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// What it may spend.
    budget: Option<BudgetSchema>,
}

/// What a session may spend.
#[derive(ToSchema)]
#[schema(as = Budget)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct BudgetSchema {
    /// Millionths of the account's currency.
    cost_micros_max: Option<u64>,
    /// Input and output tokens together.
    tokens_max: Option<u64>,
}

/// `POST /v1/sessions/{id}/events`.
#[derive(ToSchema)]
#[schema(as = Events)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct EventsSchema {
    /// 1 to 100 events.
    events: Vec<EventSchema>,
}

/// An event as sent.
#[derive(ToSchema)]
#[schema(as = Event)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct EventSchema {
    /// `user.message`, `user.interrupt`, `user.question_answer`…
    #[schema(rename = "type")]
    kind: String,
    /// An object; at most 1 MiB.
    #[schema(value_type = Object)]
    content: serde_json::Value,
}

/// `POST /v1/sessions/{id}/fork`.
#[derive(ToSchema)]
#[schema(as = Fork)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct ForkSchema {
    /// Where: exactly one of the fields.
    from: SelectorSchema,
    /// Who the child acts as; absent = as the source.
    principal: Option<String>,
    /// The child's pairs; absent = the source's.
    metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Where a fork starts; the place itself is part of the child.
#[derive(ToSchema)]
#[schema(as = Selector)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct SelectorSchema {
    /// `true`: the end of the log.
    head: Option<bool>,
    /// An event of the source's log.
    event_id: Option<String>,
    /// Its position, from 1.
    seq: Option<u64>,
    /// A checkpoint of the source: its conversation and its disk.
    checkpoint_id: Option<String>,
}

/// `POST /v1/sessions/{id}/resume`.
#[derive(ToSchema)]
#[schema(as = Resume)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct ResumeSchema {
    /// What is said; absent or null = a nudge to go on, authored by the runtime.
    prompt: Option<String>,
    /// `latest` (also when absent), or the id of a checkpoint: an older one goes on in a fork.
    from: Option<String>,
    /// Who the session must act as; another one's looks absent.
    user: Option<String>,
}

/// `POST /v1/sessions/{id}/checkpoints/{checkpoint}/pin`.
#[derive(ToSchema)]
#[schema(as = Pin)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct PinSchema {
    /// Whether it is exempt from the count.
    pinned: bool,
}

/// `POST /v1/prune`.
#[derive(ToSchema)]
#[schema(as = Prune)]
#[expect(dead_code, reason = "a description of the wire")]
pub(super) struct PruneSchema {
    /// RFC 3339: what is older goes. This, `session_id` or both.
    before: Option<String>,
    /// What is of this session goes.
    session_id: Option<String>,
    /// Whether to say only what would go.
    dry_run: Option<bool>,
    /// `next` of the answer before.
    page: Option<String>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Longhaul",
        description = "A durable runtime for agent sessions."
    ),
    paths(
        sessions::create,
        sessions::list,
        sessions::show,
        sessions::erase,
        sessions::complete,
        sessions::cancel,
        sessions::budget,
        sessions::runs,
        sessions::usage,
        prune::prune,
        events::submit,
        events::list,
        stream::follow,
        forks::fork,
        forks::diff,
        forks::tree,
        resume::resume,
        transcript::page,
        forks::checkpoints,
        forks::pin,
        deployments::create,
        deployments::list,
        deployments::newest,
        deployments::create_revision,
        deployments::list_revisions,
        deployments::revision,
        workspaces::create,
        workspaces::list,
        runners::enrol,
        runners::remove,
        runners::drain,
        claims::poll,
        claims::ready,
        claims::heartbeat,
        claims::agent_events,
        claims::inputs,
        claims::park,
        claims::settle,
        claims::release,
        operations::alive,
        operations::ready,
        operations::metrics,
        operations::openapi,
        claims::checkpoint,
        claims::reject,
        claims::steps,
        clones::adopt,
        clones::fail,
        runtimes::exec,
        runtimes::read_file,
        runtimes::write_file,
        runtimes::checkpoint,
        runtimes::delete_snapshot,
        runtimes::checkout,
        runtimes::pause,
        runtimes::resume,
        runtimes::close,
    )
)]
struct Document;

/// The document.
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ROUTES;
    use std::collections::BTreeSet;

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let json = serde_json::to_value(document()).expect("serialises");
        assert!(
            json["openapi"]
                .as_str()
                .is_some_and(|v| v.starts_with("3.1"))
        );
        let mut documented = BTreeSet::new();
        for (path, methods) in json["paths"].as_object().expect("paths") {
            for method in methods.as_object().expect("methods").keys() {
                documented.insert((path.clone(), method.to_uppercase()));
            }
        }
        let routed: BTreeSet<_> = ROUTES
            .iter()
            .map(|r| (r.path.to_owned(), r.method.to_owned()))
            .collect();
        assert_eq!(documented, routed);
    }

    #[test]
    fn every_schema_that_is_named_is_there() {
        let json = serde_json::to_value(document()).expect("serialises");
        let mut open = vec![&json];
        let mut named = BTreeSet::new();
        while let Some(value) = open.pop() {
            if let Some(name) = value.get("$ref").and_then(|r| r.as_str()) {
                named.insert(name.trim_start_matches('#').to_owned());
            }
            open.extend(value.as_object().into_iter().flat_map(|o| o.values()));
            open.extend(value.as_array().into_iter().flatten());
        }
        for name in &named {
            assert!(json.pointer(name).is_some(), "{name} is nowhere");
        }
        assert!(named.contains("/components/schemas/AgentProfile"));
    }
}
