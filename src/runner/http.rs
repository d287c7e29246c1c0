//! The claim protocol over HTTP.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use longhaul_actors::code::Code;
use longhaul_actors::session::step::{StepOp, StepResult};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::protocol::{
    ApiError, CallAnswer, ClaimApi, Cursor, EventsPage, EventsQuery, Problem, TextPage,
};
use super::steps;

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take beyond what was asked to wait.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// How a runner introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// For people.
    pub name: String,
    /// The machine it is on.
    pub host_id: String,
    /// Runs at the same time.
    pub capacity: u32,
    /// Whether it copies the disks of its snapshots for forks.
    pub snapshot_clone: bool,
}

/// The runner's id, kept between processes.
#[derive(Debug)]
struct Identity {
    file: PathBuf,
    server: String,
    workspace: Option<String>,
}

impl Identity {
    /// The id, if it was one of this server's.
    fn read(&self) -> Option<String> {
        let kept = std::fs::read(&self.file).ok()?;
        let kept: Value = serde_json::from_slice(&kept).ok()?;
        let same = kept.get("server") == Some(&json!(self.server))
            && kept.get("workspace") == Some(&json!(self.workspace));
        let id = kept.get("id").and_then(Value::as_str).filter(|_| same);
        id.map(str::to_owned)
    }

    fn write(&self, id: &str) -> std::io::Result<()> {
        if self.read().as_deref() == Some(id) {
            return Ok(());
        }
        let kept = json!({"server": self.server, "workspace": self.workspace, "id": id});
        let unfinished = self.file.with_extension("new");
        std::fs::write(&unfinished, kept.to_string())?;
        std::fs::rename(&unfinished, &self.file)
    }
}

/// A server reached over HTTP, as one enrolled runner.
#[derive(Debug)]
pub struct HttpApi {
    client: Client,
    server: Url,
    /// The token it enrols with.
    token: Option<String>,
    /// The workspace it enrols in, where there are no tokens.
    workspace: Option<String>,
    introduction: Introduction,
    enrolled: RwLock<Arc<Enrolled>>,
    /// Where its id is kept between processes.
    identity: Option<Identity>,
}

/// The runner as the server knows it now.
#[derive(Debug, Default)]
struct Enrolled {
    id: Option<String>,
    /// Its own token, where the server gives one.
    token: Option<String>,
    targets: Vec<String>,
}

impl HttpApi {
    /// A client for the server at `server` (`http://host:port`). Nothing is sent yet.
    ///
    /// # Errors
    /// When the address is no URL or the client cannot be made.
    pub fn new(
        server: &str,
        token: Option<String>,
        workspace: Option<String>,
        introduction: Introduction,
    ) -> Result<Self, String> {
        let server = Url::parse(server).map_err(|e| format!("{server:?} is no URL: {e}"))?;
        if !matches!(server.scheme(), "http" | "https") || server.cannot_be_a_base() {
            return Err(format!("{server} is no http:// or https:// address"));
        }
        let client = Client::builder().connect_timeout(CONNECT_MAX).build();
        Ok(Self {
            client: client.map_err(|e| e.to_string())?,
            server,
            token,
            workspace,
            introduction,
            enrolled: RwLock::default(),
            identity: None,
        })
    }

    /// Keeps its id in this file, and takes up the one that is there: the server then knows it as
    /// the runner that has its snapshots.
    #[must_use]
    pub fn remembered_in(mut self, file: PathBuf) -> Self {
        let identity = Identity {
            file,
            server: self.server.to_string(),
            workspace: self.workspace.clone(),
        };
        let enrolled = Enrolled {
            id: identity.read(),
            ..Enrolled::default()
        };
        self.enrolled = RwLock::new(Arc::new(enrolled));
        self.identity = Some(identity);
        self
    }

    fn enrolled(&self) -> Arc<Enrolled> {
        Arc::clone(&self.enrolled.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Enrols with these targets; an earlier enrolment gets no further claims.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn enrol_with(&self, targets: Vec<String>) -> Result<(), ApiError> {
        let about = &self.introduction;
        let known = self.enrolled().id.clone();
        let body = |id: Option<&str>| {
            json!({
                "name": about.name, "host_id": about.host_id, "targets": targets,
                "snapshot_clone": about.snapshot_clone, "capacity": about.capacity, "id": id,
            })
        };
        let post = |id: Option<&str>| {
            let path = ["v1", "runners"];
            let request = self.request(Method::POST, &path, &[], self.token.as_deref());
            send(request.json(&body(id)), Duration::ZERO)
        };
        let answer = match post(known.as_deref()).await {
            Err(ApiError::Refused(p)) if p.code == "runner.not_found" && known.is_some() => {
                tracing::info!("the server has forgotten this runner; it is a new one now");
                post(None).await?
            }
            other => other?,
        };
        let text = |key: &str| {
            answer
                .body
                .get(key)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        let now = Arc::new(Enrolled {
            id: text("id"),
            token: text("token"),
            targets,
        });
        let before = {
            let mut enrolled = self
                .enrolled
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *enrolled, now)
        };
        let now = self.enrolled();
        if let (Some(identity), Some(id)) = (&self.identity, &now.id)
            && let Err(error) = identity.write(id)
        {
            tracing::warn!(%error, "the runner's id cannot be kept; its snapshots go with it");
        }
        // The same one goes on; another one has taken its place.
        if before.id != now.id
            && let Err(error) = self.drain_one(&before).await
        {
            tracing::debug!(%error, "the earlier enrolment was not drained");
        }
        Ok(())
    }

    async fn drain_one(&self, enrolled: &Enrolled) -> Result<(), ApiError> {
        let Some(id) = &enrolled.id else {
            return Ok(());
        };
        let request = self.request(
            Method::POST,
            &["v1", "runners", id, "drain"],
            &[],
            self.own(enrolled),
        );
        send(request.json(&json!({})), Duration::ZERO)
            .await
            .map(drop)
    }

    /// A `GET` with the token it enrols with.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, ApiError> {
        let request = self.request(Method::GET, path, query, self.token.as_deref());
        send(request, Duration::ZERO)
            .await
            .map(|answer| answer.body)
    }

    fn own<'a>(&'a self, enrolled: &'a Enrolled) -> Option<&'a str> {
        enrolled.token.as_deref().or(self.token.as_deref())
    }

    async fn page(&self, query: &EventsQuery) -> Result<Bytes, ApiError> {
        let now = self.enrolled();
        let mut parameters = vec![("limit", query.limit.to_string())];
        if !query.types.is_empty() {
            parameters.push(("types", query.types.join(",")));
        }
        match query.cursor {
            Cursor::After(after) => parameters.push(("after", after.to_string())),
            Cursor::Before(before) => {
                parameters.push(("order", "desc".to_owned()));
                parameters.extend(before.map(|b| ("before", b.to_string())));
            }
        }
        let path = ["v1", "sessions", query.session_id.as_str(), "events"];
        let mut request = self.request(Method::GET, &path, &parameters, self.own(&now));
        // Without tokens a runner serves every workspace; each session is read in its own.
        if let (None, Some(workspace)) = (self.own(&now), &query.workspace) {
            request = request.header("longhaul-workspace", workspace);
        }
        fetch(request, Duration::ZERO).await.map(|(_, body)| body)
    }

    fn request(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        token: Option<&str>,
    ) -> RequestBuilder {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.client.request(method, url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        } else if let Some(workspace) = &self.workspace {
            request = request.header("longhaul-workspace", workspace);
        }
        request
    }
}

/// A page of events on the wire.
#[derive(Deserialize)]
struct Page<T> {
    events: Vec<T>,
    #[serde(default)]
    next_after: Option<u64>,
    #[serde(default)]
    next_before: Option<u64>,
}

impl<T> Page<T> {
    fn next(&self, query: &EventsQuery) -> Option<u64> {
        match query.cursor {
            Cursor::After(_) => self.next_after,
            Cursor::Before(_) => self.next_before,
        }
    }
}

async fn send(request: RequestBuilder, wait: Duration) -> Result<CallAnswer, ApiError> {
    let (status, body) = fetch(request, wait).await?;
    Ok(CallAnswer {
        status,
        body: read(&body)?,
    })
}

/// What a successful answer says.
fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body)
        .map_err(|e| ApiError::Unreachable(format!("the answer is not understood: {e}")))
}

/// The status and body of a successful answer.
async fn fetch(request: RequestBuilder, wait: Duration) -> Result<(u16, Bytes), ApiError> {
    let unreachable = |e: reqwest::Error| ApiError::Unreachable(e.to_string());
    let response = request
        .timeout(wait + ANSWER_MAX)
        .send()
        .await
        .map_err(unreachable)?;
    let status = response.status();
    let body = response.bytes().await.map_err(unreachable)?;
    if status.is_success() {
        return Ok((status.as_u16(), body));
    }
    // Not every 4xx or 5xx on the way is the server's own.
    let mut problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
    problem.status = status.as_u16();
    problem.retryable |= status.as_u16() == 429;
    Err(ApiError::Refused(Box::new(problem)))
}

impl ClaimApi for HttpApi {
    fn enrol(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        self.enrol_with(self.enrolled().targets.clone()).boxed()
    }

    fn claims(&self, max: usize, wait: Duration) -> BoxFuture<'_, Result<Vec<Value>, ApiError>> {
        async move {
            let now = self.enrolled();
            let id = now.id.clone().unwrap_or_default();
            let query = [
                ("wait_ms", wait.as_millis().to_string()),
                ("max", max.to_string()),
            ];
            let path = ["v1", "runners", id.as_str(), "claims"];
            let request = self.request(Method::POST, &path, &query, self.own(&now));
            match send(request.json(&json!({})), wait).await {
                Ok(mut answer) => {
                    let mut all = Vec::new();
                    for key in ["claims", "clones"] {
                        if let Some(Value::Array(some)) = answer.body.get_mut(key).map(Value::take)
                        {
                            all.extend(some);
                        }
                    }
                    Ok(all)
                }
                // It has enrolled anew meanwhile: this was the earlier enrolment's poll.
                Err(_) if !Arc::ptr_eq(&now, &self.enrolled()) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn call<'a>(
        &'a self,
        token: &'a str,
        verb: &'a str,
        wait: Duration,
        body: &'a Value,
    ) -> BoxFuture<'a, Result<CallAnswer, ApiError>> {
        async move {
            let now = self.enrolled();
            let query = [("wait_ms", wait.as_millis().to_string())];
            let query = if wait.is_zero() {
                &[]
            } else {
                query.as_slice()
            };
            let path = ["v1", "claims", token, verb];
            let request = self.request(Method::POST, &path, query, self.own(&now));
            send(request.json(body), wait).await
        }
        .boxed()
    }

    fn steps<'a>(
        &'a self,
        token: &'a str,
        ops: Vec<StepOp>,
    ) -> BoxFuture<'a, Result<Vec<StepResult>, ApiError>> {
        async move {
            let body = steps::body(&ops).map_err(|why| steps::refused(Code::BodyInvalid, why))?;
            let now = self.enrolled();
            let path = ["v1", "claims", token, "steps"];
            let request = self.request(Method::POST, &path, &[], self.own(&now));
            let request = request.header(CONTENT_TYPE, "application/json").body(body);
            let (_, answer) = fetch(request, Duration::ZERO).await?;
            steps::results(&answer).map_err(|why| steps::refused(Code::Internal, why))
        }
        .boxed()
    }

    fn reject_checkpoint<'a>(
        &'a self,
        token: &'a str,
        checkpoint_id: &'a str,
        reason: &'a str,
        temporary: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            // Reasons are for people.
            let reason: String = reason.chars().take(200).collect();
            let body =
                json!({"checkpoint_id": checkpoint_id, "reason": reason, "temporary": temporary});
            let call = self.call(token, "reject", Duration::ZERO, &body);
            call.await.map(drop)
        }
        .boxed()
    }

    fn answer_clone<'a>(
        &'a self,
        token: &'a str,
        copy: Result<&'a str, &'a str>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let now = self.enrolled();
            let (verb, body) = match copy {
                Ok(name) => ("adopt", json!({"sandbox_ref": name})),
                Err(reason) => ("fail", json!({"reason": reason})),
            };
            let path = ["v1", "clones", token, verb];
            let request = self.request(Method::POST, &path, &[], self.own(&now));
            send(request.json(&body), Duration::ZERO).await.map(drop)
        }
        .boxed()
    }

    fn events(&self, query: EventsQuery) -> BoxFuture<'_, Result<EventsPage, ApiError>> {
        async move {
            let body = self.page(&query).await?;
            let page: Page<Value> = read(&body)?;
            Ok(EventsPage {
                next: page.next(&query),
                events: page.events,
            })
        }
        .boxed()
    }

    fn events_text(&self, query: EventsQuery) -> BoxFuture<'_, Result<TextPage, ApiError>> {
        async move {
            let body = self.page(&query).await?;
            let page: Page<&RawValue> = read(&body)?;
            // Copied: one event that is kept must not keep its page.
            let text = |e: &&RawValue| Bytes::copy_from_slice(e.get().as_bytes());
            Ok(TextPage {
                events: page.events.iter().map(text).collect(),
                next: page.next(&query),
            })
        }
        .boxed()
    }

    fn drain(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async move { self.drain_one(&self.enrolled()).await }.boxed()
    }
}
