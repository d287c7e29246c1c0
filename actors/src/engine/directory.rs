//! Where sessions are: for each one in memory its inbox and its actor's address.
//!
//! A command waits in the inbox, not in a mailbox: an actor that dies leaves it there for its
//! successor, and the mailbox only carries the word that there is something to take.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use actix::Addr;
use tokio::sync::oneshot;

use super::config::EngineConfig;
use super::drain::Open;
use super::outcome::Outcome;
use crate::code::{Code, Rejection};
use crate::ids::SessionId;
use crate::session::actor::{SessionActor, Wake};
use crate::session::command::Command;
use crate::sync::lock;

/// Independent locks, so that callers on different cores rarely meet.
const TABLES: usize = 64;
/// Deaths of a session's actor in a row, without one commit, after which it is given up.
const CRASHES_MAX: u8 = 3;

/// A command and where its answer goes.
pub(crate) struct Queued {
    /// What is asked.
    pub(crate) command: Command,
    /// Who asks.
    pub(crate) reply: ReplyTo,
    bytes: usize,
}

impl Queued {
    /// A command of somebody who waits for its answer.
    pub(crate) fn new(command: Command, reply: ReplyTo) -> Self {
        Self {
            bytes: command.content_bytes(),
            command,
            reply,
        }
    }
}

/// Where an answer goes. Dropped without one, the caller sees `runtime.internal`.
pub(crate) struct ReplyTo {
    tx: oneshot::Sender<Result<Outcome, Rejection>>,
    _open: Open,
}

impl ReplyTo {
    /// An answer counted as open until given.
    pub(crate) fn new(open: Open) -> (Self, oneshot::Receiver<Result<Outcome, Rejection>>) {
        let (tx, rx) = oneshot::channel();
        (Self { tx, _open: open }, rx)
    }

    /// Answers. Whoever asked may be gone, which changes nothing.
    pub(crate) fn send(self, answer: Result<Outcome, Rejection>) {
        let _ = self.tx.send(answer);
    }
}

/// A session in memory.
pub(crate) struct Slot {
    /// The session.
    pub(crate) id: SessionId,
    state: Mutex<SlotState>,
    /// When its actor last did something, monotonic milliseconds.
    used_ms: AtomicU64,
}

#[derive(Default)]
struct SlotState {
    queue: VecDeque<Queued>,
    /// Content bytes of what is queued.
    bytes: usize,
    home: Home,
    /// Whether the actor is at work, or has been told that there is some.
    awake: bool,
    /// Out of the directory: nothing more may be queued here.
    closed: bool,
    /// Counts the actors of this session, so that a late word about one is told from the next.
    generation: u64,
    crashes: u8,
}

#[derive(Default)]
enum Home {
    #[default]
    Absent,
    Starting,
    Live(Addr<SessionActor>),
}

/// What became of a command.
pub(crate) enum Pushed {
    /// It waits; its actor knows.
    Waits,
    /// It waits; somebody must start an actor.
    Start,
    /// The inbox is full.
    Full,
    /// The session just left memory: look it up again.
    Closed(Queued),
}

impl Slot {
    fn new(id: SessionId) -> Self {
        Self {
            id,
            state: Mutex::default(),
            used_ms: AtomicU64::new(0),
        }
    }

    /// Queues a command.
    pub(crate) fn push(&self, queued: Queued, config: &EngineConfig) -> Pushed {
        let mut s = lock(&self.state);
        if s.closed {
            return Pushed::Closed(queued);
        }
        if s.is_full_for(&queued, config) {
            drop(s);
            queued.reply.send(Err(Rejection::new(
                Code::Busy,
                "the session's queue is full",
            )));
            return Pushed::Full;
        }
        s.bytes += queued.bytes;
        s.queue.push_back(queued);
        s.wake()
    }

    /// Asks for an actor although nothing is queued (a claim to watch). `false` = there is one.
    pub(crate) fn want(&self) -> bool {
        let mut s = lock(&self.state);
        let absent = !s.closed && matches!(s.home, Home::Absent);
        if absent {
            s.home = Home::Starting;
        }
        absent
    }

    /// Takes what is queued, up to `max`; nothing = the actor may rest until it is woken.
    pub(crate) fn take(&self, max: usize, into: &mut Vec<Queued>) {
        let mut s = lock(&self.state);
        let count = s.queue.len().min(max);
        let SlotState { queue, bytes, .. } = &mut *s;
        into.extend(queue.drain(..count).inspect(|q| *bytes -= q.bytes));
        s.awake = !into.is_empty();
    }

    /// Puts commands back, before all others.
    pub(crate) fn give_back(&self, queued: impl DoubleEndedIterator<Item = Queued>) {
        let mut s = lock(&self.state);
        for queued in queued.rev() {
            s.bytes += queued.bytes;
            s.queue.push_front(queued);
        }
    }

    /// The actor of the next generation is there. `None` = the session left memory meanwhile.
    pub(crate) fn settle(&self, addr: Addr<SessionActor>) -> Option<()> {
        let mut s = lock(&self.state);
        if s.closed {
            return None;
        }
        s.awake = !s.queue.is_empty();
        if s.awake {
            addr.do_send(Wake);
        }
        s.home = Home::Live(addr);
        Some(())
    }

    /// The number of the actor that is about to start.
    pub(crate) fn next_generation(&self) -> u64 {
        let mut s = lock(&self.state);
        s.generation += 1;
        s.generation
    }

    /// The actor died. `true` = start another; `false` = nobody needs one, or it died too often
    /// and everything queued is answered.
    pub(crate) fn died(&self, generation: u64, needed: bool) -> bool {
        let (again, given_up) = {
            let mut s = lock(&self.state);
            if s.closed || s.generation != generation {
                return false;
            }
            s.home = Home::Absent;
            s.awake = false;
            s.crashes = s.crashes.saturating_add(1);
            if s.crashes > CRASHES_MAX {
                s.crashes = 0;
                (false, s.empty())
            } else {
                let again = needed || !s.queue.is_empty();
                if again {
                    s.home = Home::Starting;
                }
                (again, VecDeque::new())
            }
        };
        for queued in given_up {
            queued.reply.send(Err(super::lost()));
        }
        again
    }

    /// Its actor did something.
    pub(crate) fn worked(&self, now_ms: u64) {
        self.used_ms.store(now_ms, Ordering::Relaxed);
    }

    /// A commit: whatever made earlier actors die, this session works.
    pub(crate) fn recovered(&self) {
        lock(&self.state).crashes = 0;
    }

    /// When its actor last did something, monotonic milliseconds.
    pub(crate) fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Relaxed)
    }

    /// The actor's address, where there is one.
    pub(crate) fn addr(&self) -> Option<Addr<SessionActor>> {
        match &lock(&self.state).home {
            Home::Live(addr) => Some(addr.clone()),
            Home::Absent | Home::Starting => None,
        }
    }

    /// Closes the slot if this very actor has nothing to do; gives its address to stop it.
    pub(crate) fn retire(&self, generation: u64) -> Option<Addr<SessionActor>> {
        let mut s = lock(&self.state);
        if s.closed || s.generation != generation || !s.queue.is_empty() || s.awake {
            return None;
        }
        s.closed = true;
        match std::mem::take(&mut s.home) {
            Home::Live(addr) => Some(addr),
            Home::Absent | Home::Starting => None,
        }
    }

    /// Closes the slot and gives back what waited.
    pub(crate) fn close(&self) -> VecDeque<Queued> {
        let mut s = lock(&self.state);
        s.closed = true;
        s.home = Home::Absent;
        s.empty()
    }

    /// Whether it is out of the directory.
    pub(crate) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    /// Closes the slot if it has no actor and nothing waits.
    pub(crate) fn close_if_absent(&self) -> bool {
        let mut s = lock(&self.state);
        let absent = !s.closed && matches!(s.home, Home::Absent) && s.queue.is_empty();
        s.closed |= absent;
        absent
    }
}

impl SlotState {
    /// Whether the inbox has no room for this one. What carries no content waits by number only:
    /// the engine's own words are among it.
    fn is_full_for(&self, queued: &Queued, config: &EngineConfig) -> bool {
        let crowded = !self.queue.is_empty()
            && queued.bytes > 0
            && self.bytes.saturating_add(queued.bytes) > config.command_queue_bytes_max;
        crowded || self.queue.len() >= config.command_queue_len_max
    }

    fn empty(&mut self) -> VecDeque<Queued> {
        self.bytes = 0;
        std::mem::take(&mut self.queue)
    }

    fn wake(&mut self) -> Pushed {
        match &self.home {
            Home::Live(addr) => {
                if !self.awake {
                    // At most one of these is ever under way for a session.
                    addr.do_send(Wake);
                    self.awake = true;
                }
                Pushed::Waits
            }
            Home::Starting => Pushed::Waits,
            Home::Absent => {
                self.home = Home::Starting;
                Pushed::Start
            }
        }
    }
}

/// Every session in memory.
pub(crate) struct Directory {
    tables: Vec<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    slots: HashMap<SessionId, Arc<Slot>>,
    closed: bool,
}

impl Directory {
    /// Nothing in memory.
    pub(crate) fn new() -> Self {
        Self {
            tables: (0..TABLES).map(|_| Mutex::default()).collect(),
        }
    }

    fn table(&self, id: SessionId) -> Option<&Mutex<Table>> {
        self.tables.get(spread(id) % TABLES)
    }

    /// The session's slot, made if absent. `None` = the directory is closed.
    pub(crate) fn slot(&self, id: SessionId) -> Option<Arc<Slot>> {
        let mut table = lock(self.table(id)?);
        if table.closed {
            return None;
        }
        let slot = table
            .slots
            .entry(id)
            .or_insert_with(|| Arc::new(Slot::new(id)));
        Some(Arc::clone(slot))
    }

    /// The session's slot, if it is in memory.
    pub(crate) fn find(&self, id: SessionId) -> Option<Arc<Slot>> {
        lock(self.table(id)?).slots.get(&id).cloned()
    }

    /// Takes this very slot out.
    pub(crate) fn remove(&self, slot: &Arc<Slot>) {
        let Some(table) = self.table(slot.id) else {
            return;
        };
        let mut table = lock(table);
        if table
            .slots
            .get(&slot.id)
            .is_some_and(|s| Arc::ptr_eq(s, slot))
        {
            table.slots.remove(&slot.id);
        }
    }

    /// Sessions in memory.
    pub(crate) fn len(&self) -> usize {
        self.tables.iter().map(|t| lock(t).slots.len()).sum()
    }

    /// Refuses everything from now on and answers what waits.
    pub(crate) fn close(&self, why: &Rejection) {
        for table in &self.tables {
            let slots = {
                let mut table = lock(table);
                table.closed = true;
                std::mem::take(&mut table.slots)
            };
            let queued = slots.into_values().flat_map(|slot| slot.close());
            queued.for_each(|q| q.reply.send(Err(why.clone())));
        }
    }
}

/// Spreads ids over a small range: some differ in their low bits only, some in their high ones.
pub(crate) fn spread(id: SessionId) -> usize {
    let bits = u128::from_be_bytes(id.0);
    // Both halves are folded in, so the narrowing loses nothing.
    let mut mixed = (bits >> 64) as u64 ^ bits as u64;
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (mixed >> 33) as usize
}
