//! Rows of the catalog: reads off the async threads, writes with conditions and receipts.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use longhaul_actors::code::{Code, Rejection};
use longhaul_actors::codec;
use longhaul_actors::env::Door;
use longhaul_actors::rows;
use longhaul_actors::session::command::ReceiptKey;
use longhaul_actors::session::decision::Reply;
use longhaul_actors::session::facts::Receipt;
use longhaul_storage::{AppendError, Condition, Log, ReadError, RowChange, View, Write, read};
use serde_json::Value;
use tokio::sync::Semaphore;

/// How often a write that lost a race is decided again.
const RETRIES_MAX: usize = 8;

/// An answer and its HTTP status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// HTTP status.
    pub status: u16,
    /// A JSON object.
    pub body: Bytes,
}

/// What one try of a write decided.
pub(crate) struct Plan {
    /// Conditions on rows, beside that of the receipt.
    pub conditions: Vec<(Bytes, Condition)>,
    /// Row changes, beside the receipt.
    pub rows: Vec<RowChange>,
    /// The answer once they are durable.
    pub status: u16,
    /// Its body.
    pub body: Value,
    /// Said only now and never kept (a secret): added to the body of the first answer.
    pub once: Option<(&'static str, Value)>,
}

#[derive(Clone)]
pub(crate) struct Store {
    log: Arc<dyn Log>,
    door: Door,
    reads: Arc<Semaphore>,
}

impl Store {
    pub(crate) fn new(log: Arc<dyn Log>, door: Door, reads_max: usize) -> Self {
        Self {
            log,
            door,
            reads: Arc::new(Semaphore::new(reads_max)),
        }
    }

    pub(crate) fn now_ms(&self) -> i64 {
        self.door.clock.wall_ms()
    }

    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.door.ids.uuid(self.now_ms())
    }

    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// One snapshot read on a thread that may block.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        f: impl FnOnce(&dyn View) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, Rejection> {
        let _permit = self.reads.acquire().await.map_err(|_| Code::Stopped)?;
        let log = Arc::clone(&self.log);
        let read = off_thread(move || read(&*log, f))
            .await
            .ok_or(Code::Stopped)?;
        read.map_err(refuse_read)
    }

    /// Answers from the receipt, or writes what `plan` says; `plan` is asked again (bounded) when
    /// a row it read has changed meanwhile.
    pub(crate) async fn write<'p>(
        &self,
        receipt: Option<ReceiptKey>,
        plan: impl Fn() -> BoxFuture<'p, Result<Plan, Rejection>> + Send + Sync,
    ) -> Result<Stored, Rejection> {
        for _ in 0..RETRIES_MAX {
            if let Some(key) = receipt
                && let Some(kept) = self.receipt(key).await?
            {
                return Ok(kept);
            }
            let plan = plan().await?;
            let (write, answer) = self.prepare(receipt, plan);
            match self.log.append(write).await {
                Ok(_) => return Ok(answer),
                Err(AppendError::Condition { .. }) => {}
                Err(e) => return Err(refuse_append(e)),
            }
        }
        Err(Code::Busy.into())
    }

    fn prepare(&self, receipt: Option<ReceiptKey>, plan: Plan) -> (Write, Stored) {
        let Plan {
            mut conditions,
            mut rows,
            status,
            body,
            once,
        } = plan;
        if let Some(key) = receipt {
            let reply = Reply::json(status, &body);
            let row = rows::receipt(key.scope);
            let kept = Receipt {
                body: key.body,
                reply,
                at_ms: self.now_ms(),
            };
            conditions.push((row.clone(), Condition::Absent));
            rows.push(RowChange::Put(row, codec::encode(&kept)));
        }
        let mut body = body;
        if let (Some((field, value)), Value::Object(fields)) = (once, &mut body) {
            fields.insert(field.to_owned(), value);
        }
        let answer = Stored {
            status,
            body: body.to_string().into(),
        };
        (
            Write {
                stream: None,
                conditions,
                rows,
            },
            answer,
        )
    }

    async fn receipt(&self, key: ReceiptKey) -> Result<Option<Stored>, Rejection> {
        let row = self.row(rows::receipt(key.scope)).await?;
        let Some(kept) = row.map(|r| decode::<Receipt>(&r)).transpose()? else {
            return Ok(None);
        };
        if kept.body != key.body {
            return Err(Code::IdempotencyConflict.into());
        }
        Ok(Some(Stored {
            status: kept.reply.status,
            body: kept.reply.body.into(),
        }))
    }

    /// One row.
    pub(crate) async fn row(&self, key: Bytes) -> Result<Option<Bytes>, Rejection> {
        self.read(move |view| view.row(&key)).await
    }
}

/// Reads a stored row.
pub(crate) fn decode<T: bincode::Decode<()>>(bytes: &[u8]) -> Result<T, Rejection> {
    codec::decode(bytes).map_err(|e| Rejection::new(Code::Internal, format!("a row: {e}")))
}

/// Runs `f` on a thread that may block; `None` if it panicked. Works under any executor.
pub(crate) async fn off_thread<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if let Ok(tokio) = tokio::runtime::Handle::try_current() {
        return tokio.spawn_blocking(f).await.ok();
    }
    let (tx, rx) = tokio::sync::oneshot::channel();
    let run = move || {
        // Nobody waits any more: nothing to tell.
        let _ = tx.send(f());
    };
    std::thread::Builder::new()
        .name("longhaul-blocking".into())
        .spawn(run)
        .ok()?;
    rx.await.ok()
}

fn refuse_read(e: ReadError) -> Rejection {
    match e {
        ReadError::Closed => Rejection::plain(Code::StorageUnavailable),
        other => Rejection::new(Code::Internal, other.to_string()),
    }
}

fn refuse_append(e: AppendError) -> Rejection {
    let code = match &e {
        AppendError::Busy => Code::Busy,
        AppendError::Full { .. } => Code::StorageFull,
        AppendError::Closed => Code::Stopped,
        AppendError::Unknown { .. } => Code::OutcomeUnknown,
        _ => Code::Internal,
    };
    Rejection::new(code, e.to_string())
}
