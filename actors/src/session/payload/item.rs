//! Contents of `item.closed` and `signal.consumed`.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use crate::ids::EventId;

/// How an item ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Encode, Decode)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the wire names say it")]
pub enum ItemState {
    Answered,
    Granted,
    Denied,
    Expired,
    Superseded,
    Cancelled,
}

impl ItemState {
    /// The wire form.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Granted => "granted",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Superseded => "superseded",
            Self::Cancelled => "cancelled",
        }
    }
}

/// `item.closed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct ItemClosed {
    /// The event that opened it (for a signal's wait: the `run.parked`).
    pub item_id: EventId,
    pub state: ItemState,
    /// Who closed it.
    pub by: String,
    /// The answer, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_id: Option<EventId>,
    /// The signal whose wait ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// `signal.consumed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct SignalConsumed {
    pub signal_id: EventId,
    pub name: String,
}
