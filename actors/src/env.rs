//! The only door to clocks, ids and randomness.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::limits::Limits;

/// A future that resolves when a point of monotonic time is reached.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Clocks. Wall time is for people and for deadlines that outlive the process; everything
/// inside a process is measured on the monotonic clock, so that a wall-clock jump moves nothing.
pub trait Clock: Send + Sync + Debug {
    /// Milliseconds since the Unix epoch.
    fn wall_ms(&self) -> i64;
    /// Monotonic time since an arbitrary start.
    fn mono(&self) -> Duration;
    /// Resolves when `mono()` has reached `until`. Needs a tokio context.
    fn sleep_until(&self, until: Duration) -> Sleep;
}

/// A source of 16-byte ids and secrets.
pub trait Ids: Send + Sync + Debug {
    /// A UUIDv7 of the given wall time, greater than the one before it in this process.
    fn uuid(&self, wall_ms: i64) -> [u8; 16];
    /// 128 unpredictable bits.
    fn secret(&self) -> [u8; 16];
}

/// What a running system gets its time and ids from.
#[derive(Debug, Clone)]
pub struct Door {
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The ids.
    pub ids: Arc<dyn Ids>,
}

impl Door {
    /// The real clocks and the operating system's randomness.
    pub fn system() -> Self {
        Self {
            clock: Arc::new(SystemClock::new()),
            ids: Arc::new(SystemIds),
        }
    }

    /// What one decision sees.
    pub fn env<'a>(&'a self, limits: &'a Limits) -> Env<'a> {
        Env {
            now_ms: self.clock.wall_ms(),
            mono: self.clock.mono(),
            ids: &*self.ids,
            limits,
        }
    }
}

/// What a decision may know of the world: one instant, new ids, the limits.
#[derive(Debug, Clone, Copy)]
pub struct Env<'a> {
    /// Wall time of this decision, milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// Monotonic time of this decision, for what must not end or last because the wall clock is set.
    pub mono: Duration,
    /// New ids.
    pub ids: &'a dyn Ids,
    /// The configured limits.
    pub limits: &'a Limits,
}

impl Env<'_> {
    /// A new id's bytes.
    pub fn uuid(&self) -> [u8; 16] {
        self.ids.uuid(self.now_ms)
    }
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Monotonic time counts from here.
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn wall_ms(&self) -> i64 {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    }

    fn mono(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep_until(&self, until: Duration) -> Sleep {
        let at = self.start.checked_add(until);
        Box::pin(async move {
            match at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        })
    }
}

/// UUIDv7 in one increasing order for the whole process, secrets from a cryptographic generator.
#[derive(Debug, Default)]
pub struct SystemIds;

impl Ids for SystemIds {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn uuid(&self, _wall_ms: i64) -> [u8; 16] {
        uuid::Uuid::now_v7().into_bytes()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn secret(&self) -> [u8; 16] {
        uuid::Uuid::new_v4().into_bytes()
    }
}

/// A clock that moves only when told, and ids that count: for tests.
#[derive(Debug, Clone)]
pub struct ManualWorld(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    wall_ms: AtomicI64,
    mono_ms: tokio::sync::watch::Sender<u64>,
    next: AtomicU64,
    last: Mutex<u128>,
}

impl ManualWorld {
    /// Starts at the given wall time.
    pub fn new(wall_ms: i64) -> Self {
        Self(Arc::new(Manual {
            wall_ms: AtomicI64::new(wall_ms),
            mono_ms: tokio::sync::watch::Sender::new(0),
            next: AtomicU64::new(1),
            last: Mutex::new(0),
        }))
    }

    /// The door that leads here.
    pub fn door(&self) -> Door {
        Door {
            clock: Arc::new(self.clone()),
            ids: Arc::new(self.clone()),
        }
    }

    /// Moves both clocks.
    pub fn advance_ms(&self, ms: u64) {
        self.jump_wall_ms(i64::try_from(ms).unwrap_or(i64::MAX));
        self.0.mono_ms.send_modify(|t| *t = t.saturating_add(ms));
    }

    /// Steps the wall clock alone, as a time service or an operator does.
    pub fn jump_wall_ms(&self, ms: i64) {
        self.0.wall_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualWorld {
    fn wall_ms(&self) -> i64 {
        self.0.wall_ms.load(Ordering::SeqCst)
    }

    fn mono(&self) -> Duration {
        Duration::from_millis(*self.0.mono_ms.borrow())
    }

    fn sleep_until(&self, until: Duration) -> Sleep {
        let mut now = self.0.mono_ms.subscribe();
        Box::pin(async move {
            let reached = |t: &u64| Duration::from_millis(*t) >= until;
            if now.wait_for(reached).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }
}

impl Ids for ManualWorld {
    fn uuid(&self, wall_ms: i64) -> [u8; 16] {
        let count = u128::from(self.0.next.fetch_add(1, Ordering::SeqCst));
        let ms = u128::from(u64::try_from(wall_ms).unwrap_or(0));
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = ((ms << 80) | (0x7 << 76) | (0x2 << 62) | (count << 40)).max(*last + (1 << 40));
        last.to_be_bytes()
    }

    fn secret(&self) -> [u8; 16] {
        u128::from(self.0.next.fetch_add(1, Ordering::SeqCst)).to_be_bytes()
    }
}
