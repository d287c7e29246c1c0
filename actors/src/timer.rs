//! The only place that waits: one task over the clock, for everything inside the process that
//! wants to be woken. Deadlines are monotonic; see [`durable`] for those that outlive it.

pub mod durable;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::{Notify, oneshot};

use crate::env::Clock;
use crate::sync::lock;

/// Below this many waits nothing is tidied.
const TIDY_MIN: usize = 1_024;

/// Wakes whoever waits. Cheap to clone.
#[derive(Clone)]
pub struct Timer {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Arc<dyn Clock>,
    heap: Mutex<Heap>,
    changed: Notify,
}

struct Heap {
    waits: BinaryHeap<Reverse<Wait>>,
    next: u64,
    tidy_at: usize,
    closed: bool,
}

struct Wait {
    at: Duration,
    number: u64,
    tx: oneshot::Sender<()>,
}

impl PartialEq for Wait {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Wait {}

impl PartialOrd for Wait {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Wait {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Timer {
    /// A timer on this clock. Somebody must run [`Timer::drive`].
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let waits = BinaryHeap::new();
        let heap = Mutex::new(Heap {
            waits,
            next: 0,
            tidy_at: TIDY_MIN,
            closed: false,
        });
        Self {
            shared: Arc::new(Shared {
                clock,
                heap,
                changed: Notify::new(),
            }),
        }
    }

    /// Monotonic time.
    pub fn now(&self) -> Duration {
        self.shared.clock.mono()
    }

    /// Resolves when `at` is reached, or the timer ends. Runs on any executor.
    pub fn until(&self, at: Duration) -> impl Future<Output = ()> + Send + use<> {
        let (tx, rx) = oneshot::channel();
        let earliest = {
            let mut heap = lock(&self.shared.heap);
            if heap.closed {
                drop(tx);
                false
            } else {
                heap.push(at, tx)
            }
        };
        if earliest {
            self.shared.changed.notify_one();
        }
        async move {
            // An ended timer wakes its waiters too: they look and find the end.
            let _ = rx.await;
        }
    }

    /// Resolves after `wait`, or when the timer ends.
    pub fn after(&self, wait: Duration) -> impl Future<Output = ()> + Send + use<> {
        self.until(self.now().saturating_add(wait))
    }

    /// Waits that are registered (some may be given up already).
    pub fn waiting(&self) -> usize {
        lock(&self.shared.heap).waits.len()
    }

    /// Wakes waiters as time goes on, until [`Timer::close`]. Needs a tokio context.
    pub async fn drive(&self) {
        loop {
            let changed = self.shared.changed.notified();
            let (due, next) = {
                let mut heap = lock(&self.shared.heap);
                if heap.closed {
                    return;
                }
                heap.due(self.now())
            };
            // Waking runs other people's code: not under the lock.
            for wait in due {
                // Whoever waited may be gone.
                let _ = wait.tx.send(());
            }
            match next {
                None => changed.await,
                Some(at) => {
                    let sleep = self.shared.clock.sleep_until(at);
                    futures_util::pin_mut!(changed);
                    match select(changed, sleep).await {
                        Either::Left(_) | Either::Right(_) => {}
                    }
                }
            }
        }
    }

    /// Ends the timer and wakes everybody.
    pub fn close(&self) {
        let waits = {
            let mut heap = lock(&self.shared.heap);
            heap.closed = true;
            std::mem::take(&mut heap.waits)
        };
        drop(waits);
        self.shared.changed.notify_one();
    }
}

impl Heap {
    /// Registers a wait; `true` = it is the earliest.
    fn push(&mut self, at: Duration, tx: oneshot::Sender<()>) -> bool {
        if self.waits.len() >= self.tidy_at {
            // Waits whose owner went away would otherwise stay until their time.
            self.waits.retain(|Reverse(w)| !w.tx.is_closed());
            self.tidy_at = (self.waits.len() * 2).max(TIDY_MIN);
        }
        let earliest = self.waits.peek().is_none_or(|Reverse(w)| at < w.at);
        self.next += 1;
        self.waits.push(Reverse(Wait {
            at,
            number: self.next,
            tx,
        }));
        earliest
    }

    fn due(&mut self, now: Duration) -> (Vec<Wait>, Option<Duration>) {
        let mut due = Vec::new();
        while let Some(Reverse(first)) = self.waits.peek() {
            if first.at > now {
                return (due, Some(first.at));
            }
            due.extend(self.waits.pop().map(|Reverse(w)| w));
        }
        (due, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ManualWorld;

    #[test]
    fn waits_end_in_order_of_time_and_given_up_ones_are_tidied() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("runtime");
        let world = ManualWorld::new(0);
        let timer = Timer::new(world.door().clock);
        runtime.block_on(async {
            let driver = timer.clone();
            let task = tokio::spawn(async move { driver.drive().await });
            let late = timer.until(Duration::from_millis(20));
            let early = timer.until(Duration::from_millis(10));
            world.advance_ms(10);
            early.await;
            futures_util::pin_mut!(late);
            assert!(futures_util::poll!(&mut late).is_pending());
            world.advance_ms(10);
            late.await;
            for _ in 0..TIDY_MIN * 3 {
                drop(timer.after(Duration::from_secs(60)));
            }
            assert!(timer.waiting() <= TIDY_MIN * 2);
            let open = timer.after(Duration::from_secs(60));
            timer.close();
            open.await;
            task.await.expect("the driver ends");
        });
    }
}
