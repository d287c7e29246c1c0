//! Runtime control: `/api/v1/runtimes/*`, operations on the sandbox of a session between runs.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{CheckpointId, SessionId};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body::Body;
use super::context::{Ctx, bad_id};
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use super::sessions::{answer, json_value};
use crate::runner::sandbox::Exec;
use crate::runtime::{Asked, Named, OPERATION_S_MAX};

/// Longest conversation and sender, bytes: those of a metadata value.
const LABEL_BYTES_MAX: usize = 500;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Runtime {
    runtime_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keep {
    runtime_id: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    metadata: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Checkout {
    checkpoint_id: String,
    #[serde(default)]
    conversation_id: Option<String>,
    #[serde(default)]
    sender_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeleteSnapshot {
    checkpoint_id: String,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    runtime_id: String,
    command: String,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    env: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    runtime_id: String,
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFile {
    runtime_id: String,
    path: String,
    content_base64: String,
}

fn session(text: &str) -> Result<SessionId, Rejection> {
    SessionId::parse(text).map_err(|e| bad_id("runtime_id", &e))
}

fn checkpoint_id(text: &str) -> Result<CheckpointId, Rejection> {
    CheckpointId::parse(text).map_err(|e| bad_id("checkpoint_id", &e))
}

fn invalid(detail: impl Into<String>) -> Rejection {
    Rejection::new(Code::FieldInvalid, detail)
}

/// Every operation: no parameters, the caller, the body's fields.
fn begin<'a, T: Deserialize<'a>>(ctx: &Ctx, body: &'a Body) -> Result<(Asked, T), Rejection> {
    Params::of(&ctx.req)?.finish()?;
    let fields = body.fields()?;
    Ok((ctx.asked(&body.0)?, fields))
}

fn named(keep: Keep) -> Result<(SessionId, Named), Rejection> {
    let id = session(&keep.runtime_id)?;
    if keep
        .name
        .as_ref()
        .is_some_and(|n| n.is_empty() || n.len() > LABEL_BYTES_MAX)
    {
        return Err(invalid(format!("`name` has 1 to {LABEL_BYTES_MAX} bytes")));
    }
    let named = Named {
        name: keep.name,
        metadata: keep.metadata,
    };
    Ok((id, named))
}

/// Keeps the disk of a session as it is now.
#[utoipa::path(post, path = "/api/v1/runtimes/checkpoint", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id, name?, metadata?}`"),
    responses((status = 200, description = "`{runtime, checkpoint_id, parent_checkpoint_id, name, metadata}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn checkpoint(ctx: Ctx, body: Body) -> Answered {
    let (asked, keep) = begin(&ctx, &body)?;
    let (id, named) = named(keep)?;
    Ok(answer(
        ctx.runtime().checkpoint_runtime(asked, id, named).await?,
    ))
}

/// Keeps the disk and lets the sandbox go, until `resume`.
#[utoipa::path(post, path = "/api/v1/runtimes/pause", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id, name?, metadata?}`"),
    responses((status = 200, description = "as `checkpoint`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn pause(ctx: Ctx, body: Body) -> Answered {
    let (asked, keep) = begin(&ctx, &body)?;
    let (id, named) = named(keep)?;
    Ok(answer(ctx.runtime().pause_runtime(asked, id, named).await?))
}

/// Brings a paused session back, with its disk.
#[utoipa::path(post, path = "/api/v1/runtimes/resume", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id}`"),
    responses((status = 200, description = "`{runtime}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn resume(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, Runtime) = begin(&ctx, &body)?;
    let id = session(&of.runtime_id)?;
    Ok(answer(ctx.runtime().resume_runtime(asked, id).await?))
}

/// Ends a session as done and lets its sandbox go; its checkpoints stay.
#[utoipa::path(post, path = "/api/v1/runtimes/close", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id}`"),
    responses((status = 200, description = "`{runtime}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn close(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, Runtime) = begin(&ctx, &body)?;
    let id = session(&of.runtime_id)?;
    Ok(answer(ctx.runtime().close_runtime(asked, id).await?))
}

/// Starts a new session from a checkpoint; the source is left as it is.
#[utoipa::path(post, path = "/api/v1/runtimes/checkout", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{checkpoint_id, conversation_id?, sender_id?}`"),
    responses((status = 200, description = "`{runtime, source_runtime_id, checkpoint_id}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn checkout(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, Checkout) = begin(&ctx, &body)?;
    let id = checkpoint_id(&of.checkpoint_id)?;
    for label in [&of.conversation_id, &of.sender_id].into_iter().flatten() {
        if label.is_empty() || label.len() > LABEL_BYTES_MAX {
            return Err(invalid(format!(
                "`conversation_id` and `sender_id` have 1 to {LABEL_BYTES_MAX} bytes"
            ))
            .into());
        }
    }
    let (runtime, source) = ctx
        .runtime()
        .checkout_runtime(asked, id, of.conversation_id, of.sender_id)
        .await?;
    Ok(json_value(
        200,
        &json!({"runtime": runtime, "source_runtime_id": source, "checkpoint_id": id}),
    ))
}

/// Deletes the bytes behind a checkpoint; the checkpoint stays listed.
#[utoipa::path(post, path = "/api/v1/runtimes/checkpoint/delete-snapshot", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{checkpoint_id, force?}`"),
    responses((status = 200, description = "`{runtime_id, checkpoint_id, deleted_provider_snapshot, runtime}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn delete_snapshot(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, DeleteSnapshot) = begin(&ctx, &body)?;
    let id = checkpoint_id(&of.checkpoint_id)?;
    Ok(answer(
        ctx.runtime()
            .delete_runtime_snapshot(asked, id, of.force)
            .await?,
    ))
}

/// Runs a command in the sandbox.
#[utoipa::path(post, path = "/api/v1/runtimes/exec", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id, command, cwd?, timeout_ms?, env?}`"),
    responses((status = 200, description = "`{stdout_base64, stderr_base64, exit_code, timed_out, dropped_bytes}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn exec(ctx: Ctx, body: Body) -> Answered {
    let (asked, run): (_, Run) = begin(&ctx, &body)?;
    ctx.no_idempotency_key("a command runs each time it is sent")?;
    let id = session(&run.runtime_id)?;
    if run.timeout_ms == Some(0) {
        return Err(invalid("`timeout_ms` is at least 1").into());
    }
    let env = run.env.into_iter().map(|(key, value)| match value {
        Value::String(text)
            if !key.is_empty() && !key.contains(['=', '\0']) && !text.contains('\0') =>
        {
            Ok((key, text))
        }
        _ => Err(invalid(format!("`env.{key}` is no variable with a text"))),
    });
    let exec = Exec {
        command: run.command,
        cwd: run.cwd,
        env: env.collect::<Result<_, _>>()?,
        timeout: run
            .timeout_ms
            .map(|ms| Duration::from_millis(ms.min(OPERATION_S_MAX * 1_000))),
        merge_stderr: false,
    };
    let out = ctx.runtime().exec_runtime(asked, id, exec).await?;
    Ok(json_value(
        200,
        &json!({
            "stdout_base64": BASE64.encode(&out.stdout),
            "stderr_base64": BASE64.encode(&out.stderr),
            "exit_code": out.exit_code,
            "timed_out": out.timed_out,
            "dropped_bytes": out.dropped_bytes,
        }),
    ))
}

/// Reads a file of the sandbox.
#[utoipa::path(post, path = "/api/v1/runtimes/read-file", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id, path}`"),
    responses((status = 200, description = "`{content_base64}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn read_file(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, ReadFile) = begin(&ctx, &body)?;
    ctx.no_idempotency_key("reading changes nothing")?;
    let id = session(&of.runtime_id)?;
    let bytes = ctx.runtime().read_runtime_file(asked, id, of.path).await?;
    Ok(json_value(
        200,
        &json!({"content_base64": BASE64.encode(bytes)}),
    ))
}

/// Writes a file of the sandbox.
#[utoipa::path(post, path = "/api/v1/runtimes/write-file", tag = "runtimes",
    request_body(content = serde_json::Value, description = "`{runtime_id, path, content_base64}`"),
    responses((status = 200, description = "`{}`"), (status = "default", body = ProblemSchema)))]
pub(super) async fn write_file(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, WriteFile) = begin(&ctx, &body)?;
    ctx.no_idempotency_key("writing the same again changes nothing")?;
    let id = session(&of.runtime_id)?;
    let bytes = BASE64
        .decode(&of.content_base64)
        .map_err(|e| invalid(format!("`content_base64`: {e}")))?;
    ctx.runtime()
        .write_runtime_file(asked, id, of.path, bytes)
        .await?;
    Ok(json_value(200, &json!({})))
}
