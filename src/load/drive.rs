//! The clients: each appends one event after the other and notes what was acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use longhaul_actors::env::{Clock, SystemClock};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::fleet::{Fleet, Held};
use super::physical::{histogram, noise, record};
use super::target::{Call, Lane};
use crate::cli::exit::{CliError, Exit};

/// Wait before a call is repeated that the server turned away or never answered.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a server may be away.
const AWAY_MAX: Duration = Duration::from_secs(120);
/// Bytes of a marker: client, dash, count, dash.
pub(crate) const MARKER_BYTES: usize = 8 + 1 + 12 + 1;

/// One acknowledged event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    /// Index of the session.
    pub(crate) slot: u32,
    /// The position that was acknowledged.
    pub(crate) seq: u64,
    /// The client's own count.
    pub(crate) count: u64,
}

/// What one client did.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Which client.
    pub(crate) client: u32,
    /// Everything acknowledged, in its own order.
    pub(crate) acks: Vec<Ack>,
    /// Latencies, microseconds (open loop: from when the call was due).
    pub(crate) times: Histogram<u64>,
    /// Events without an answer that were not repeated: they may be there or not.
    pub(crate) unknown: Vec<(u32, u64)>,
    /// Calls repeated.
    pub(crate) repeated: u64,
}

/// What all clients share.
#[derive(Debug)]
pub(crate) struct Course {
    /// The sessions.
    pub(crate) fleet: Arc<Fleet>,
    /// Clients.
    pub(crate) clients: u32,
    /// Whether calls are numbered, so that they can be repeated.
    pub(crate) numbered: bool,
    /// Time between two calls of one client; zero = closed loop.
    pub(crate) every: Duration,
    /// Bytes of one event's content.
    pub(crate) event_bytes: usize,
    /// Acknowledged so far, by all.
    pub(crate) acked: AtomicU64,
    /// A client works only while it holds a permit.
    pub(crate) gate: Semaphore,
    /// Clients give their permits back and wait at the gate.
    pub(crate) hold: AtomicBool,
    /// The end.
    pub(crate) stop: AtomicBool,
}

impl Course {
    /// Lets the clients run. The permits are those that `Course::halt` took.
    pub(crate) fn go(&self, permits: Option<SemaphorePermit<'_>>) {
        self.hold.store(false, Ordering::SeqCst);
        match permits {
            Some(permits) => drop(permits),
            None => self.gate.add_permits(self.clients as usize),
        }
    }

    /// Stops the clients and waits until each has the answer of its last call.
    pub(crate) async fn halt(&self) -> Result<SemaphorePermit<'_>, CliError> {
        self.hold.store(true, Ordering::SeqCst);
        let all = self.gate.acquire_many(self.clients).await;
        all.map_err(|_| CliError::failed("load.gate", "the clients are gone"))
    }
}

/// The end of one call.
enum End {
    Acked(u64),
    Unknown,
    Ended,
}

struct Client {
    course: Arc<Course>,
    id: u32,
    lane: Lane,
    clock: SystemClock,
    body: Vec<u8>,
    tally: Tally,
}

/// Runs one client until the course stops.
pub(crate) async fn client(course: Arc<Course>, id: u32) -> Result<Tally, CliError> {
    let tally = Tally {
        client: id,
        acks: Vec::new(),
        times: histogram(),
        unknown: Vec::new(),
        repeated: 0,
    };
    let lane = course.fleet.target.lane();
    let mut client = Client {
        course,
        id,
        lane,
        clock: SystemClock::new(),
        body: Vec::new(),
        tally,
    };
    client.run().await?;
    Ok(client.tally)
}

impl Client {
    async fn run(&mut self) -> Result<(), CliError> {
        let course = Arc::clone(&self.course);
        let slots = course.fleet.slots.len();
        let text = padding(course.event_bytes, u64::from(self.id));
        let mut permit = None;
        let mut due = Duration::ZERO;
        let mut slot = self.id as usize % slots;
        for count in 0.. {
            if course.hold.load(Ordering::SeqCst) {
                permit = None;
            }
            if permit.is_none() {
                let pass = course.gate.acquire().await;
                permit = Some(pass.map_err(|_| CliError::failed("load.gate", "closed"))?);
                // Callers of an open loop do not start all at once.
                due = self.clock.mono() + course.every * self.id / course.clients;
            }
            if course.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
            let mut from = self.clock.mono();
            if !course.every.is_zero() {
                self.clock.sleep_until(due).await;
                from = due;
                due += course.every;
            }
            match self.append(slot, count, &text).await? {
                End::Acked(seq) => {
                    let took = self.clock.mono().saturating_sub(from);
                    record(&mut self.tally.times, took);
                    self.tally.acks.push(Ack {
                        slot: slot as u32,
                        seq,
                        count,
                    });
                    course.acked.fetch_add(1, Ordering::Relaxed);
                }
                End::Unknown => self.tally.unknown.push((slot as u32, count)),
                End::Ended => return Ok(()),
            }
            slot += course.clients as usize;
            if slot >= slots {
                slot = self.id as usize % slots;
            }
        }
        Ok(())
    }

    /// One event, repeated until it is acknowledged or can no longer be repeated.
    async fn append(&mut self, slot: usize, count: u64, text: &str) -> Result<End, CliError> {
        let course = Arc::clone(&self.course);
        let mut tried: Option<Arc<Held>> = None;
        let started = self.clock.mono();
        loop {
            let held = course.fleet.claim(&mut self.lane, slot).await?;
            // Sent under another claim without an answer: repeating it could double it.
            if tried
                .as_ref()
                .is_some_and(|before| !Arc::ptr_eq(before, &held))
            {
                return Ok(End::Unknown);
            }
            let n = course
                .numbered
                .then(|| held.calls.load(Ordering::Relaxed) + 1);
            self.write_body(n, count, text);
            let call = Call::Verb {
                token: &held.token,
                verb: "events",
            };
            let answer = self.lane.call(call, &self.body).await;
            let sent = match answer {
                Ok(answer) if answer.status == 202 => {
                    if let Some(n) = n {
                        held.calls.store(n, Ordering::Relaxed);
                    }
                    return seq_of(&answer.body).map(End::Acked);
                }
                Ok(answer) => self.refused(slot, &held, answer.status, &answer.body)?,
                // Whether it was sent is not known, unless there was no connection at all.
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Sent::Not,
                Err(_) => Sent::Perhaps,
            };
            match sent {
                Sent::Not => {}
                Sent::Perhaps if course.numbered => tried = Some(held),
                Sent::Perhaps => return Ok(End::Unknown),
                Sent::LogFull => return Ok(End::Ended),
            }
            if course.stop.load(Ordering::SeqCst)
                && self.clock.mono().saturating_sub(started) > AWAY_MAX / 4
            {
                return Ok(if tried.is_some() {
                    End::Unknown
                } else {
                    End::Ended
                });
            }
            if self.clock.mono().saturating_sub(started) > AWAY_MAX {
                let detail = format!("no answer from {} any more", course.fleet.target.name());
                return Err(CliError::new(Exit::Unreachable, "load.away", detail, ""));
            }
            self.tally.repeated += 1;
            self.clock.sleep_until(self.clock.mono() + AGAIN).await;
        }
    }

    /// What a refusal means for the event that was sent.
    fn refused(
        &self,
        slot: usize,
        held: &Arc<Held>,
        status: u16,
        body: &[u8],
    ) -> Result<Sent, CliError> {
        let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        match problem.get("code").and_then(serde_json::Value::as_str) {
            Some("runtime.claim_lost" | "claim.not_found") => {
                self.course.fleet.lost(slot, held);
                Ok(Sent::Not)
            }
            Some("session.event_limit") => Ok(Sent::LogFull),
            Some("storage.outcome_unknown") => Ok(Sent::Perhaps),
            _ if matches!(status, 429 | 503 | 507) => Ok(Sent::Not),
            _ => Err(CliError::of_problem(status, &problem)),
        }
    }

    fn write_body(&mut self, n: Option<u64>, count: u64, text: &str) {
        use std::io::Write;
        self.body.clear();
        let out = &mut self.body;
        // Writing to a vector cannot fail.
        let _ = match n {
            Some(n) => write!(out, "{{\"n\":{n},"),
            None => write!(out, "{{"),
        };
        let _ = write!(
            out,
            "\"events\":[{{\"type\":\"agent.message\",\"content\":{{\"text\":\"{:08x}-{count:012x}-{text}\"}}}}]}}",
            self.id
        );
    }
}

enum Sent {
    Not,
    Perhaps,
    LogFull,
}

/// The text after the marker, so that the content has the wanted bytes.
pub(crate) fn padding(event_bytes: usize, seed: u64) -> String {
    let around = MARKER_BYTES + r#"{"text":""}"#.len();
    String::from_utf8(noise(event_bytes.saturating_sub(around), seed)).unwrap_or_default()
}

/// The position in an answer `{"events":[{"id":…,"seq":12,…}]}`.
pub(crate) fn seq_of(answer: &[u8]) -> Result<u64, CliError> {
    #[derive(serde::Deserialize)]
    struct Accepted {
        events: Vec<At>,
    }
    #[derive(serde::Deserialize)]
    struct At {
        seq: u64,
    }
    let read: Result<Accepted, _> = serde_json::from_slice(answer);
    let seq = read.ok().and_then(|a| a.events.first().map(|e| e.seq));
    seq.ok_or_else(|| {
        let shown = String::from_utf8_lossy(answer)
            .chars()
            .take(200)
            .collect::<String>();
        CliError::failed(
            "load.answer",
            format!("an answer without a position: {shown}"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_has_the_wanted_bytes() {
        let text = padding(1024, 1);
        let content = format!("{{\"text\":\"{:08x}-{:012x}-{text}\"}}", 3, 9);
        assert_eq!(content.len(), 1024);
    }

    #[test]
    fn a_position_is_read_from_the_answer() {
        let answer = br#"{"events":[{"id":"evt_1","seq":17,"type":"agent.message"}]}"#;
        assert_eq!(seq_of(answer).unwrap(), 17);
        assert!(seq_of(b"{}").is_err());
    }
}
