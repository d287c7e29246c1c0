//! What a load run found, for people and for programs.

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use super::check::Checked;

/// The whole result.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `in_process`, `http` or `chaos`.
    pub mode: &'static str,
    /// Sessions.
    pub sessions: u32,
    /// Clients.
    pub clients: u32,
    /// Seconds of appending.
    pub seconds: f64,
    /// Bytes of one event's content.
    pub event_bytes: u64,
    /// Appends per second asked for; absent = closed loop.
    pub rate: Option<u64>,
    /// Whether calls were numbered.
    pub numbered: bool,
    /// Durable appends per second: the median of the rounds.
    pub appends_per_s: f64,
    /// Latency of one append, milliseconds.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
    /// See `p50_ms`.
    pub p999_ms: f64,
    /// See `p50_ms`.
    pub max_ms: f64,
    /// RocksDB with group commit and nothing else; absent when left out.
    pub raw: Option<RawFigure>,
    /// The bare append + fdatasync loop; absent when left out.
    pub fdatasync: Option<FdatasyncFigure>,
    /// Median over the rounds of ours ÷ raw.
    pub ratio_to_raw: Option<f64>,
    /// Message intake; absent when left out.
    pub intake: Option<Intake>,
    /// The check of the log.
    pub checked: Checked,
    /// How often the server was killed.
    pub kills: u64,
    /// Calls that were repeated.
    pub repeated: u64,
    /// Ours of every round, appends per second.
    pub rounds: Vec<f64>,
}

/// Raw RocksDB.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RawFigure {
    /// Durable rows per second: the median of the rounds.
    pub appends_per_s: f64,
}

/// The bare loop.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FdatasyncFigure {
    /// Per second: the median of the rounds.
    pub per_s: f64,
    /// Median of one, milliseconds.
    pub p50_ms: f64,
}

/// Message intake.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Intake {
    /// Messages accepted.
    pub messages: u64,
    /// Per second.
    pub messages_per_s: f64,
    /// Latency, milliseconds.
    pub p50_ms: f64,
    /// See `p50_ms`.
    pub p99_ms: f64,
}

/// A quantile in milliseconds.
pub(crate) fn quantile_ms(times: &Histogram<u64>, q: f64) -> f64 {
    times.value_at_quantile(q) as f64 / 1000.0
}

/// The middle value (0 of none).
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().saturating_sub(1) / 2, sorted.len() / 2);
    match (sorted.get(low), sorted.get(high)) {
        (Some(a), Some(b)) => f64::midpoint(*a, *b),
        _ => 0.0,
    }
}

impl Report {
    /// As one JSON object.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// As a table for people.
    pub fn to_text(&self) -> String {
        let mut out = vec![format!(
            "{} sessions, {} clients, {:.1} s, {} bytes an event, {}",
            self.sessions,
            self.clients,
            self.seconds,
            self.event_bytes,
            match self.rate {
                Some(rate) => format!("{rate}/s asked for"),
                None => "closed loop".to_owned(),
            }
        )];
        out.push(format!(
            "{:<26}{:>12}{:>10}{:>10}{:>10}",
            "", "per second", "p50 ms", "p99 ms", "p99.9 ms"
        ));
        out.push(format!(
            "{:<26}{:>12.0}{:>10.3}{:>10.3}{:>10.3}",
            format!("durable appends ({})", self.mode),
            self.appends_per_s,
            self.p50_ms,
            self.p99_ms,
            self.p999_ms
        ));
        if let Some(i) = &self.intake {
            let (rate, p50, p99) = (i.messages_per_s, i.p50_ms, i.p99_ms);
            out.push(format!(
                "{:<26}{rate:>12.0}{p50:>10.3}{p99:>10.3}",
                "message intake"
            ));
        }
        if let Some(raw) = &self.raw {
            let rate = raw.appends_per_s;
            out.push(format!("{:<26}{rate:>12.0}", "raw RocksDB group commit"));
        }
        if let Some(f) = &self.fdatasync {
            let (rate, p50) = (f.per_s, f.p50_ms);
            out.push(format!(
                "{:<26}{rate:>12.0}{p50:>10.3}",
                "4 KiB append + fdatasync"
            ));
        }
        if let Some(ratio) = self.ratio_to_raw {
            out.push(format!("ours ÷ raw: {ratio:.2}"));
        }
        if self.kills > 0 {
            out.push(format!(
                "killed with -9: {} times; calls repeated: {}",
                self.kills, self.repeated
            ));
        }
        let c = &self.checked;
        out.push(format!(
            "log checked: {} acknowledged, {} lost, {} doubled, {} out of order, {} gaps{}",
            c.acknowledged,
            c.lost,
            c.doubled,
            c.out_of_order,
            c.gaps,
            if c.unknown > 0 {
                format!(
                    "; {} never answered, {} of them in the log",
                    c.unknown, c.unknown_found
                )
            } else {
                String::new()
            }
        ));
        out.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
