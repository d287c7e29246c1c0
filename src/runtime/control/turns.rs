//! The same request, sent again while it is under way, waits for its first answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use longhaul_actors::session::command::ReceiptKey;
use tokio::sync::{Mutex as Line, OwnedMutexGuard};

/// Held by the one that works; the next one comes when it is dropped.
pub(crate) type Turn = OwnedMutexGuard<()>;

/// The lines of requests with an Idempotency-Key, by its scope. A line is there as long as
/// somebody works or waits in it.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<[u8; 16], Weak<Line<()>>>>);

impl Turns {
    /// Waits until nobody else works under this key; without a key there is nothing to wait for.
    pub(crate) async fn wait(&self, key: Option<ReceiptKey>) -> Option<Turn> {
        let line = self.line(key?.scope);
        Some(line.lock_owned().await)
    }

    fn line(&self, scope: [u8; 16]) -> Arc<Line<()>> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| line.strong_count() > 0);
        if let Some(line) = lines.get(&scope).and_then(Weak::upgrade) {
            return line;
        }
        let line = Arc::default();
        lines.insert(scope, Arc::downgrade(&line));
        line
    }
}
