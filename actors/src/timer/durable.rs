//! Durable timers: rows in the log say what is due when, by wall time; memory holds the near
//! ones, by monotonic time, so that a step of the wall clock fires nothing early or late.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use bytes::Bytes;
use longhaul_storage::{Order, PageLimit};

use crate::codec;
use crate::engine::inner::{Guard, Inner, Intake};
use crate::reader::Class;
use crate::rows;
use crate::session::command::Command;
use crate::session::projection::{Due, TimerRow};

/// Sessions told of a due timer at the same time.
const FIRING_MAX: usize = 64;
/// A session that was slow to answer is no reason to wait longer than this for the next.
const REST_MAX: Duration = Duration::from_secs(1);
/// How long until a session that could not be told is told again.
const RETRY: Duration = Duration::from_secs(1);

/// The near timers. Pure.
///
/// Every row up to and with the cursor was taken into memory (or is over); every row behind it
/// is on disk only, until a scan comes to it.
#[derive(Debug, Default)]
pub(crate) struct Wheel {
    at: BTreeMap<TimerRow, Duration>,
    order: BTreeSet<(Duration, TimerRow)>,
    /// Those that nobody waits for.
    idle: BTreeSet<(Duration, TimerRow)>,
    cursor: Option<Bytes>,
}

/// One instant on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Wall time, milliseconds.
    pub(crate) wall_ms: i64,
    /// Monotonic time.
    pub(crate) mono: Duration,
}

impl Wheel {
    /// A row was written. Far ones are left to the scan, unless it is past them already (the
    /// wall clock went back).
    pub(crate) fn set(&mut self, row: TimerRow, now: Now, ahead: Duration) {
        let scanned = self.cursor.as_ref().is_some_and(|c| row.key() <= *c);
        if scanned || row.due_ms <= now.wall_ms.saturating_add(millis(ahead)) {
            self.insert(row, due_in(row, now));
        }
    }

    /// A row was deleted.
    pub(crate) fn clear(&mut self, row: &TimerRow) {
        if let Some(at) = self.at.remove(row) {
            self.order_of(row).remove(&(at, *row));
        }
    }

    /// Takes rows of a scan, in key order, as far as they are near. `true` = the page was used
    /// to its end, so that the next one may be read.
    pub(crate) fn scanned(
        &mut self,
        page: &[(Bytes, TimerRow)],
        now: Now,
        ahead: Duration,
    ) -> bool {
        for (key, row) in page {
            if row.due_ms > now.wall_ms.saturating_add(millis(ahead)) {
                return false;
            }
            if !self.at.contains_key(row) {
                self.insert(*row, due_in(*row, now));
            }
            self.cursor = Some(key.clone());
        }
        !page.is_empty()
    }

    /// Puts a row off.
    pub(crate) fn retry(&mut self, row: TimerRow, at: Duration) {
        self.insert(row, at);
    }

    /// The next due row, taken out.
    pub(crate) fn pop(&mut self, now: Duration) -> Option<TimerRow> {
        let (at, row) = *self.order.first()?;
        if at > now {
            return None;
        }
        self.clear(&row);
        Some(row)
    }

    /// The same, of those that nobody waits for.
    pub(crate) fn pop_idle(&mut self, now: Duration) -> Option<TimerRow> {
        let (at, row) = *self.idle.first()?;
        if at > now {
            return None;
        }
        self.clear(&row);
        Some(row)
    }

    /// When the next row is due that nobody waits for.
    pub(crate) fn next_idle(&self) -> Option<Duration> {
        self.idle.first().map(|(at, _)| *at)
    }

    fn order_of(&mut self, row: &TimerRow) -> &mut BTreeSet<(Duration, TimerRow)> {
        if is_idle(row) {
            &mut self.idle
        } else {
            &mut self.order
        }
    }

    /// When the next row is due.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.order.first().map(|(at, _)| *at)
    }

    fn insert(&mut self, row: TimerRow, at: Duration) {
        self.clear(&row);
        self.at.insert(row, at);
        self.order_of(&row).insert((at, row));
    }
}

/// Whether nobody waits for it: what is over is over, also before its session is told.
fn is_idle(row: &TimerRow) -> bool {
    match row.due {
        Due::Checkpoint | Due::Contents => true,
        Due::Hold | Due::Wait(_) => false,
    }
}

fn due_in(row: TimerRow, now: Now) -> Duration {
    let left = u64::try_from(row.due_ms.saturating_sub(now.wall_ms)).unwrap_or(0);
    now.mono.saturating_add(Duration::from_millis(left))
}

fn millis(d: Duration) -> i64 {
    i64::try_from(d.as_millis()).unwrap_or(i64::MAX)
}

/// Tells sessions of their due timers.
pub(crate) struct Durable {
    inner: Arc<Inner>,
    wheel: Wheel,
    firing: usize,
    /// A session is told of something that nobody waits for, or the rest after it goes on. Many may
    /// be due at once, and all of them together take at most half of one session's pace.
    idling: bool,
    armed: Option<Duration>,
    scanning: bool,
    _guard: Guard,
}

/// A row was written.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SetTimer(pub(crate) TimerRow);

/// A row was deleted.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ClearTimer(pub(crate) TimerRow);

/// Look at the rows that have come near.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ScanTimers;

impl Durable {
    /// Not started yet.
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let guard = Guard::new(&inner, "the durable timers");
        let wheel = Wheel::default();
        Self {
            inner,
            wheel,
            firing: 0,
            idling: false,
            armed: None,
            scanning: false,
            _guard: guard,
        }
    }

    fn now(&self) -> Now {
        let clock = &self.inner.door.clock;
        Now {
            wall_ms: clock.wall_ms(),
            mono: clock.mono(),
        }
    }

    fn ahead(&self) -> Duration {
        Duration::from_secs(self.inner.config.timer_ahead_s)
    }

    /// Fires what is due and waits for the next.
    fn turn(&mut self, ctx: &mut Context<Self>) {
        let now = self.inner.timer.now();
        while self.firing < FIRING_MAX {
            let Some(row) = self.wheel.pop(now) else {
                break;
            };
            self.fire(row, ctx);
        }
        if !self.idling
            && let Some(row) = self.wheel.pop_idle(now)
        {
            self.fire(row, ctx);
        }
        let next = self.wheel.next().filter(|_| self.firing < FIRING_MAX);
        let idle = self.wheel.next_idle().filter(|_| !self.idling);
        let Some(next) = next.into_iter().chain(idle).min() else {
            return;
        };
        if self.armed.is_some_and(|at| at <= next) {
            return;
        }
        self.armed = Some(next);
        let wait = self.inner.timer.until(next).into_actor(self);
        ctx.spawn(wait.map(move |(), this, ctx| {
            if this.armed == Some(next) {
                this.armed = None;
            }
            if this.inner.is_running() {
                this.turn(ctx);
            }
        }));
    }

    fn fire(&mut self, row: TimerRow, ctx: &mut Context<Self>) {
        let idle = is_idle(&row);
        if idle {
            self.idling = true;
        } else {
            self.firing += 1;
        }
        let started = self.inner.timer.now();
        let told = self
            .inner
            .post(row.session, Command::Expire(row.expiry()), Intake::Internal);
        let told = async move {
            match told {
                Ok(answer) => answer.await.unwrap_or_else(|_| Err(crate::reader::lost())),
                Err(refusal) => Err(refusal),
            }
        };
        ctx.spawn(told.into_actor(self).map(move |told, this, ctx| {
            if idle {
                this.rest(started, ctx);
            } else {
                this.firing -= 1;
            }
            match told {
                Ok(outcome) => {
                    if let Some(again_ms) = outcome.again_ms {
                        // The row stays as it is: after a restart it asks at once.
                        let later = TimerRow {
                            due_ms: again_ms,
                            ..row
                        };
                        let at = due_in(later, this.now());
                        this.wheel.retry(row, at);
                    }
                }
                Err(refusal) if refusal.code.info().kind != crate::code::Kind::Refused => {
                    let at = this.inner.timer.now().saturating_add(RETRY);
                    this.wheel.retry(row, at);
                }
                Err(_) => {}
            }
            if this.inner.is_running() {
                this.turn(ctx);
            }
        }));
    }

    /// As long as the work that began then took, so that others come in between.
    fn rest(&self, started: Duration, ctx: &mut Context<Self>) {
        let took = self.inner.timer.now().saturating_sub(started);
        let rest = self.inner.timer.after(took.min(REST_MAX)).into_actor(self);
        ctx.spawn(rest.map(|(), this, ctx| {
            this.idling = false;
            if this.inner.is_running() {
                this.turn(ctx);
            }
        }));
    }

    fn scan(&mut self, ctx: &mut Context<Self>) {
        if std::mem::replace(&mut self.scanning, true) {
            return;
        }
        let after = self.wheel.cursor.clone();
        let items_max = self.inner.config.sweep_rows_max;
        let page = self.inner.read(Class::Session, move |view| {
            let limit = PageLimit {
                items_max,
                bytes_max: 1 << 20,
            };
            view.rows(
                &rows::table(rows::TIMER),
                after.as_deref(),
                Order::Asc,
                limit,
            )
        });
        ctx.spawn(page.into_actor(self).map(move |page, this, ctx| {
            this.scanning = false;
            let Ok(page) = page else { return };
            let full = page.len() >= items_max;
            let read = page
                .into_iter()
                .filter_map(|(key, value)| match codec::decode(&value) {
                    Ok(row) => Some((key, row)),
                    Err(e) => {
                        tracing::error!(error = %e, "a timer row does not decode");
                        None
                    }
                });
            let read: Vec<(Bytes, TimerRow)> = read.collect();
            let (now, ahead) = (this.now(), this.ahead());
            let used = this.wheel.scanned(&read, now, ahead);
            this.turn(ctx);
            if used && full {
                this.scan(ctx);
            }
        }));
    }
}

impl Actor for Durable {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(self.inner.config.mailbox_len_max);
        self.scan(ctx);
    }
}

impl Handler<SetTimer> for Durable {
    type Result = ();
    fn handle(&mut self, SetTimer(row): SetTimer, ctx: &mut Self::Context) {
        let (now, ahead) = (self.now(), self.ahead());
        self.wheel.set(row, now, ahead);
        self.turn(ctx);
    }
}

impl Handler<ClearTimer> for Durable {
    type Result = ();
    fn handle(&mut self, ClearTimer(row): ClearTimer, _: &mut Self::Context) {
        self.wheel.clear(&row);
    }
}

impl Handler<ScanTimers> for Durable {
    type Result = ();
    fn handle(&mut self, _: ScanTimers, ctx: &mut Self::Context) {
        self.scan(ctx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    const AHEAD: Duration = Duration::from_secs(600);

    fn row(due_ms: i64) -> TimerRow {
        TimerRow {
            due_ms,
            session: SessionId([1; 16]),
            seq: 1,
            due: crate::session::projection::Due::Hold,
        }
    }

    fn now(wall_ms: i64, mono_ms: u64) -> Now {
        Now {
            wall_ms,
            mono: Duration::from_millis(mono_ms),
        }
    }

    fn page(dues: &[i64]) -> Vec<(Bytes, TimerRow)> {
        dues.iter().map(|d| (row(*d).key(), row(*d))).collect()
    }

    #[test]
    fn a_step_of_the_wall_clock_moves_no_timer_in_memory() {
        let mut wheel = Wheel::default();
        wheel.set(row(10_000), now(0, 0), AHEAD);
        // Two hours forward: still due after ten seconds of monotonic time.
        assert_eq!(wheel.pop(Duration::from_millis(9_999)), None);
        wheel.set(row(7_210_000), now(7_200_000, 5_000), AHEAD);
        assert_eq!(wheel.pop(Duration::from_millis(10_000)), Some(row(10_000)));
        assert_eq!(wheel.next(), Some(Duration::from_millis(15_000)));
    }

    #[test]
    fn what_nobody_waits_for_is_apart() {
        let mut wheel = Wheel::default();
        let idle = TimerRow {
            due: Due::Checkpoint,
            ..row(1_000)
        };
        wheel.set(idle, now(0, 0), AHEAD);
        wheel.set(row(2_000), now(0, 0), AHEAD);
        let later = Duration::from_secs(3);
        assert_eq!(wheel.pop(later), Some(row(2_000)));
        assert_eq!(wheel.pop(later), None);
        assert_eq!(wheel.next_idle(), Some(Duration::from_secs(1)));
        assert_eq!(wheel.pop_idle(Duration::from_millis(999)), None);
        assert_eq!(wheel.pop_idle(later), Some(idle));
        wheel.retry(idle, later);
        wheel.clear(&idle);
        assert_eq!((wheel.next(), wheel.next_idle()), (None, None));
    }

    #[test]
    fn a_row_behind_the_scan_is_kept_although_the_clock_went_back() {
        let mut wheel = Wheel::default();
        assert!(wheel.scanned(&page(&[1_000, 500_000]), now(0, 0), AHEAD));
        // Back by two hours; this row sorts before the cursor, so no scan will come to it.
        wheel.set(row(400_000), now(-7_200_000, 100), AHEAD);
        assert_eq!(wheel.at.len(), 3);
        // A far one behind the cursor is left to the scan.
        wheel.set(row(90_000_000), now(0, 100), AHEAD);
        assert_eq!(wheel.at.len(), 3);
        assert!(!wheel.scanned(&page(&[90_000_000]), now(0, 100), AHEAD));
        assert!(wheel.scanned(&page(&[90_000_000]), now(89_999_000, 200), AHEAD));
    }

    #[test]
    fn cleared_and_retried_timers() {
        let mut wheel = Wheel::default();
        wheel.set(row(10), now(0, 0), AHEAD);
        wheel.clear(&row(10));
        assert_eq!(wheel.pop(Duration::from_secs(1)), None);
        wheel.retry(row(10), Duration::from_secs(2));
        assert_eq!(wheel.pop(Duration::from_secs(1)), None);
        assert_eq!(wheel.pop(Duration::from_secs(2)), Some(row(10)));
        assert_eq!(wheel.next(), None);
    }
}
