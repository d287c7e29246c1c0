//! The claim protocol over HTTP.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use reqwest::{Client, Method, RequestBuilder, Url};
use serde_json::{Value, json};

use super::protocol::{ApiError, CallAnswer, ClaimApi, Cursor, EventsPage, EventsQuery, Problem};

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
        })
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
        let body = json!({
            "name": about.name, "host_id": about.host_id, "targets": targets,
            "snapshot_clone": false, "capacity": about.capacity,
        });
        let request = self.request(Method::POST, &["v1", "runners"], &[], self.token.as_deref());
        let answer = send(request.json(&body), Duration::ZERO).await?;
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
        if let Err(error) = self.drain_one(&before).await {
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

async fn send(request: RequestBuilder, wait: Duration) -> Result<CallAnswer, ApiError> {
    let unreachable = |e: reqwest::Error| ApiError::Unreachable(e.to_string());
    let response = request
        .timeout(wait + ANSWER_MAX)
        .send()
        .await
        .map_err(unreachable)?;
    let status = response.status();
    let body = response.bytes().await.map_err(unreachable)?;
    if status.is_success() {
        let body = serde_json::from_slice(&body)
            .map_err(|e| ApiError::Unreachable(format!("the answer is no JSON: {e}")))?;
        return Ok(CallAnswer {
            status: status.as_u16(),
            body,
        });
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
                Ok(mut answer) => match answer.body.get_mut("claims").map(Value::take) {
                    Some(Value::Array(claims)) => Ok(claims),
                    _ => Ok(Vec::new()),
                },
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

    fn events(&self, query: EventsQuery) -> BoxFuture<'_, Result<EventsPage, ApiError>> {
        async move {
            let now = self.enrolled();
            let mut parameters = vec![("limit", query.limit.to_string())];
            if !query.types.is_empty() {
                parameters.push(("types", query.types.join(",")));
            }
            let next = match query.cursor {
                Cursor::After(after) => {
                    parameters.push(("after", after.to_string()));
                    "next_after"
                }
                Cursor::Before(before) => {
                    parameters.push(("order", "desc".to_owned()));
                    parameters.extend(before.map(|b| ("before", b.to_string())));
                    "next_before"
                }
            };
            let path = ["v1", "sessions", query.session_id.as_str(), "events"];
            let mut request = self.request(Method::GET, &path, &parameters, self.own(&now));
            // Without tokens a runner serves every workspace; each session is read in its own.
            if let (None, Some(workspace)) = (self.own(&now), &query.workspace) {
                request = request.header("longhaul-workspace", workspace);
            }
            let mut body = send(request, Duration::ZERO).await?.body;
            let events = match body.get_mut("events").map(Value::take) {
                Some(Value::Array(events)) => events,
                _ => Vec::new(),
            };
            Ok(EventsPage {
                events,
                next: body.get(next).and_then(Value::as_u64),
            })
        }
        .boxed()
    }

    fn drain(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async move { self.drain_one(&self.enrolled()).await }.boxed()
    }
}
