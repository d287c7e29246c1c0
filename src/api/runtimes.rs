//! Runtime control: `/api/v1/runtimes/*`, operations on the sandbox of a session between runs.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::ids::{CheckpointId, SessionId};
use serde::Deserialize;
use serde_json::json;

mod bodies;

use super::body::Body;
use super::context::{Ctx, bad_id};
use super::openapi::ProblemSchema;
use super::params::Params;
use super::problem::Answered;
use super::sessions::{answer, json_value};
use crate::runner::sandbox::Exec;
use crate::runtime::{Asked, Named, OPERATION_S_MAX};
use bodies::{
    CheckedOut, Checkout, Content, DeleteSnapshot, Deleted, Keep, Kept, Output, ReadFile, Record,
    Resume, Resumed, Run, Runtime, WriteFile, Written,
};

/// Longest conversation and sender, bytes: those of a metadata value.
const LABEL_BYTES_MAX: usize = 500;

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
    let named = Named {
        name: keep.name,
        metadata: keep.metadata,
    };
    Ok((id, named))
}

/// Keeps the disk of a session as it is now.
#[utoipa::path(post, path = "/api/v1/runtimes/checkpoint", tag = "runtimes",
    request_body = Keep,
    responses((status = 200, body = Kept), (status = "default", body = ProblemSchema)))]
pub(super) async fn checkpoint(ctx: Ctx, body: Body) -> Answered {
    let (asked, keep) = begin(&ctx, &body)?;
    let (id, named) = named(keep)?;
    Ok(answer(
        ctx.runtime().checkpoint_runtime(asked, id, named).await?,
    ))
}

/// Keeps the disk and lets the sandbox go, until `resume`.
#[utoipa::path(post, path = "/api/v1/runtimes/pause", tag = "runtimes",
    request_body = Keep,
    responses((status = 200, body = Kept), (status = "default", body = ProblemSchema)))]
pub(super) async fn pause(ctx: Ctx, body: Body) -> Answered {
    let (asked, keep) = begin(&ctx, &body)?;
    let (id, named) = named(keep)?;
    Ok(answer(ctx.runtime().pause_runtime(asked, id, named).await?))
}

/// Brings a paused session back, with its disk.
#[utoipa::path(post, path = "/api/v1/runtimes/resume", tag = "runtimes",
    request_body = Runtime,
    responses((status = 200, body = Resumed), (status = "default", body = ProblemSchema)))]
pub(super) async fn resume(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, Runtime) = begin(&ctx, &body)?;
    let id = session(&of.runtime_id)?;
    Ok(answer(ctx.runtime().resume_runtime(asked, id).await?))
}

/// Ends a session as done and lets its sandbox go; its checkpoints stay.
#[utoipa::path(post, path = "/api/v1/runtimes/close", tag = "runtimes",
    request_body = Runtime,
    responses((status = 200, body = Record), (status = "default", body = ProblemSchema)))]
pub(super) async fn close(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, Runtime) = begin(&ctx, &body)?;
    let id = session(&of.runtime_id)?;
    Ok(answer(ctx.runtime().close_runtime(asked, id).await?))
}

/// Starts a new session from a checkpoint; the source is left as it is.
#[utoipa::path(post, path = "/api/v1/runtimes/checkout", tag = "runtimes",
    request_body = Checkout,
    responses((status = 200, body = CheckedOut), (status = "default", body = ProblemSchema)))]
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
    request_body = DeleteSnapshot,
    responses((status = 200, body = Deleted), (status = "default", body = ProblemSchema)))]
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
    request_body = Run,
    responses((status = 200, body = Output), (status = "default", body = ProblemSchema)))]
pub(super) async fn exec(ctx: Ctx, body: Body) -> Answered {
    let (asked, run): (_, Run) = begin(&ctx, &body)?;
    ctx.no_idempotency_key("a command runs each time it is sent")?;
    let id = session(&run.runtime_id)?;
    let ms_max = OPERATION_S_MAX * 1_000;
    if run.timeout_ms.is_some_and(|ms| !(1..=ms_max).contains(&ms)) {
        return Err(invalid(format!("`timeout_ms` is 1 to {ms_max}")).into());
    }
    let exec = Exec {
        command: run.command,
        cwd: run.cwd,
        env: run.env.into_iter().collect(),
        timeout: run.timeout_ms.map(Duration::from_millis),
        merge_stderr: false,
    };
    let out = ctx.runtime().exec_runtime(asked, id, exec).await?;
    let output = Output {
        stdout_base64: BASE64.encode(&out.value.stdout),
        stderr_base64: BASE64.encode(&out.value.stderr),
        exit_code: out.value.exit_code,
        timed_out: out.value.timed_out,
        dropped_bytes: out.value.dropped_bytes,
        resume: out.began.map(Resume::from),
    };
    Ok(json_value(200, &json!(output)))
}

/// Reads a file of the sandbox.
#[utoipa::path(post, path = "/api/v1/runtimes/read-file", tag = "runtimes",
    request_body = ReadFile,
    responses((status = 200, body = Content), (status = "default", body = ProblemSchema)))]
pub(super) async fn read_file(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, ReadFile) = begin(&ctx, &body)?;
    ctx.no_idempotency_key("reading changes nothing")?;
    let id = session(&of.runtime_id)?;
    let read = ctx.runtime().read_runtime_file(asked, id, of.path).await?;
    let content = Content {
        content_base64: BASE64.encode(read.value),
        resume: read.began.map(Resume::from),
    };
    Ok(json_value(200, &json!(content)))
}

/// Writes a file of the sandbox.
#[utoipa::path(post, path = "/api/v1/runtimes/write-file", tag = "runtimes",
    request_body = WriteFile,
    responses((status = 200, body = Written), (status = "default", body = ProblemSchema)))]
pub(super) async fn write_file(ctx: Ctx, body: Body) -> Answered {
    let (asked, of): (_, WriteFile) = begin(&ctx, &body)?;
    ctx.no_idempotency_key("writing the same again changes nothing")?;
    let id = session(&of.runtime_id)?;
    let bytes = BASE64
        .decode(&of.content_base64)
        .map_err(|e| invalid(format!("`content_base64`: {e}")))?;
    let written = ctx
        .runtime()
        .write_runtime_file(asked, id, of.path, bytes)
        .await?;
    let resume = written.began.map(Resume::from);
    Ok(json_value(200, &json!(Written { resume })))
}
