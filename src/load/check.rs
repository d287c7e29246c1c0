//! The check afterwards: every acknowledged event is in the log once, where it was acknowledged,
//! in order, and the log has no gap.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use super::drive::{MARKER_BYTES, Tally};
use super::fleet::Fleet;
use super::target::{Call, Lane};
use crate::cli::exit::CliError;
use crate::cli::output::Progress;

/// Sessions read at once.
const READERS: usize = 8;

/// What the check found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Events that were acknowledged.
    pub acknowledged: u64,
    /// Acknowledged, but not at the position that was acknowledged.
    pub lost: u64,
    /// In the log more than once.
    pub doubled: u64,
    /// Behind a later event of the same client.
    pub out_of_order: u64,
    /// Positions missing from a log.
    pub gaps: u64,
    /// In the log without anyone having sent it.
    pub foreign: u64,
    /// Sent without an answer and not repeated: may be there or not.
    pub unknown: u64,
    /// Of those: found in the log.
    pub unknown_found: u64,
    /// Events read.
    pub events: u64,
}

impl Checked {
    /// Whether everything is as it must be.
    pub fn is_clean(&self) -> bool {
        self.lost + self.doubled + self.out_of_order + self.gaps + self.foreign == 0
    }

    fn add(&mut self, other: Self) {
        self.acknowledged += other.acknowledged;
        self.lost += other.lost;
        self.doubled += other.doubled;
        self.out_of_order += other.out_of_order;
        self.gaps += other.gaps;
        self.foreign += other.foreign;
        self.unknown += other.unknown;
        self.unknown_found += other.unknown_found;
        self.events += other.events;
    }
}

/// What the clients say of one session.
#[derive(Debug, Default)]
struct Expected {
    /// Position → client and count.
    acked: HashMap<u64, (u32, u64)>,
    unknown: HashSet<(u32, u64)>,
}

/// Reads every session's log and compares it with what the clients noted.
pub(crate) async fn check(
    fleet: &Arc<Fleet>,
    tallies: &[Tally],
    bar: &Progress,
) -> Result<Checked, CliError> {
    let mut expected: Vec<Expected> = Vec::new();
    expected.resize_with(fleet.slots.len(), Expected::default);
    let mut total = Checked::default();
    for tally in tallies {
        for ack in &tally.acks {
            let Some(e) = expected.get_mut(ack.slot as usize) else {
                continue;
            };
            // Two acknowledgements of one position: one of them is lost.
            if e.acked.insert(ack.seq, (tally.client, ack.count)).is_some() {
                total.lost += 1;
            }
            total.acknowledged += 1;
        }
        for (slot, count) in &tally.unknown {
            if let Some(e) = expected.get_mut(*slot as usize) {
                e.unknown.insert((tally.client, *count));
            }
            total.unknown += 1;
        }
    }
    let mut readers = JoinSet::new();
    let mut work = expected.into_iter().enumerate();
    let mut done = 0;
    loop {
        while readers.len() < READERS
            && let Some((index, expected)) = work.next()
        {
            let fleet = Arc::clone(fleet);
            readers.spawn(async move { session(&fleet, index, expected).await });
        }
        let Some(found) = readers.join_next().await else {
            return Ok(total);
        };
        total.add(found.map_err(|e| CliError::failed("load.check", e.to_string()))??);
        done += 1;
        bar.at(done);
    }
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    events: Vec<Envelope<'a>>,
    next_after: Option<u64>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    seq: u64,
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

async fn session(fleet: &Fleet, index: usize, expected: Expected) -> Result<Checked, CliError> {
    let mut lane = fleet.target.lane();
    let mut reading = Reading {
        expected,
        ..Reading::default()
    };
    let Some(slot) = fleet.slots.get(index) else {
        return Ok(Checked::default());
    };
    let mut after = 0;
    loop {
        let body = page(&mut lane, &slot.session, after).await?;
        let page: Page<'_> = serde_json::from_slice(&body).map_err(|e| {
            CliError::failed(
                "load.check",
                format!("a page of {} is not JSON: {e}", slot.session),
            )
        })?;
        page.events.iter().for_each(|e| reading.take(e));
        match page.next_after {
            Some(next) if !page.events.is_empty() && next > after => after = next,
            _ => return Ok(reading.end()),
        }
    }
}

async fn page(lane: &mut Lane, session: &str, after: u64) -> Result<Vec<u8>, CliError> {
    let answer = lane.call(Call::Page { session, after }, b"").await;
    let answer = answer.map_err(|e| CliError::unreachable("the server", e))?;
    if answer.status == 200 {
        return Ok(answer.body);
    }
    let problem = serde_json::from_slice(&answer.body).unwrap_or_default();
    Err(CliError::of_problem(answer.status, &problem))
}

/// One log, read in order.
#[derive(Default)]
struct Reading {
    expected: Expected,
    last_seq: u64,
    /// Highest count of each client so far.
    highest: HashMap<u32, u64>,
    seen: HashSet<(u32, u64)>,
    found: Checked,
}

impl Reading {
    fn take(&mut self, e: &Envelope<'_>) {
        self.found.events += 1;
        self.found.gaps += e.seq.saturating_sub(self.last_seq + 1);
        // A position twice, or backwards, is no gap but a doubled one.
        self.found.doubled += u64::from(e.seq <= self.last_seq);
        self.last_seq = self.last_seq.max(e.seq);
        let acked = self.expected.acked.remove(&e.seq);
        if e.kind != "agent.message" {
            self.found.lost += u64::from(acked.is_some());
            return;
        }
        let marker = e.content.and_then(|c| marker(c.get()));
        if let Some(acked) = acked
            && marker != Some(acked)
        {
            self.found.lost += 1;
        }
        let Some((client, count)) = marker else {
            self.found.foreign += 1;
            return;
        };
        if !self.seen.insert((client, count)) {
            self.found.doubled += 1;
        } else if acked.is_none() {
            if self.expected.unknown.contains(&(client, count)) {
                self.found.unknown_found += 1;
            } else {
                self.found.foreign += 1;
            }
        }
        let highest = self.highest.entry(client).or_insert(count);
        self.found.out_of_order += u64::from(count < *highest);
        *highest = count.max(*highest);
    }

    fn end(mut self) -> Checked {
        self.found.lost += self.expected.acked.len() as u64;
        self.found
    }
}

/// Client and count of `{"text":"CCCCCCCC-NNNNNNNNNNNN-…"}`.
fn marker(content: &str) -> Option<(u32, u64)> {
    let text = content.strip_prefix(r#"{"text":""#)?;
    let text = text.get(..MARKER_BYTES)?;
    let (client, rest) = text.split_once('-')?;
    let count = rest.strip_suffix('-')?;
    Some((
        u32::from_str_radix(client, 16).ok()?,
        u64::from_str_radix(count, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &[(u64, &str)], acked: &[(u64, u64)], unknown: &[u64]) -> Checked {
        let expected = Expected {
            acked: acked
                .iter()
                .map(|(seq, count)| (*seq, (1, *count)))
                .collect(),
            unknown: unknown.iter().map(|count| (1, *count)).collect(),
        };
        let mut reading = Reading {
            expected,
            ..Reading::default()
        };
        for (seq, kind) in log {
            let count = kind.strip_prefix('m').map(|n| n.parse::<u64>().unwrap());
            let content = count.map(|n| {
                let text = format!("{{\"text\":\"{:08x}-{n:012x}-pad\"}}", 1);
                RawValue::from_string(text).unwrap()
            });
            let kind = if count.is_some() {
                "agent.message"
            } else {
                "run.queued"
            };
            reading.take(&Envelope {
                seq: *seq,
                kind,
                content: content.as_deref(),
            });
        }
        reading.end()
    }

    #[test]
    fn a_whole_log_is_clean() {
        let got = read(
            &[(1, "q"), (2, "m0"), (3, "m1"), (4, "m2")],
            &[(2, 0), (4, 2)],
            &[1],
        );
        assert!(got.is_clean(), "{got:?}");
        assert_eq!(got.unknown_found, 1);
    }

    #[test]
    fn each_fault_is_seen() {
        assert_eq!(read(&[(1, "m0")], &[(1, 0), (2, 1)], &[]).lost, 1);
        assert_eq!(
            read(&[(1, "m0"), (2, "m1")], &[(1, 0), (2, 5)], &[1]).lost,
            1
        );
        assert_eq!(read(&[(1, "q")], &[(1, 0)], &[]).lost, 1);
        assert_eq!(
            read(&[(1, "m0"), (3, "m1")], &[(1, 0), (3, 1)], &[]).gaps,
            1
        );
        assert_eq!(read(&[(1, "m0"), (2, "m0")], &[(1, 0)], &[0]).doubled, 1);
        assert_eq!(
            read(&[(1, "m1"), (2, "m0")], &[(1, 1), (2, 0)], &[]).out_of_order,
            1
        );
        assert_eq!(read(&[(1, "m9")], &[], &[]).foreign, 1);
    }
}
