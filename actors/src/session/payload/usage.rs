//! What was spent.

use bincode::{Decode, Encode};
use serde::{Deserialize, Serialize};

use super::Budget;

/// What was spent. Integers, counted where spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Encode, Decode)]
#[serde(default)]
#[expect(missing_docs, reason = "the wire names say it")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// Millionths of the account's currency.
    pub cost_micros: u64,
}

/// `usage.recorded`: what was spent, and by which model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageRecorded {
    /// What was spent.
    #[serde(flatten)]
    pub usage: Usage,
    /// The model, where one did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

impl From<Usage> for UsageRecorded {
    fn from(usage: Usage) -> Self {
        Self { usage, model: None }
    }
}

impl Usage {
    /// Whether nothing was spent.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The sum; saturates.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self
                .cache_read_tokens
                .saturating_add(other.cache_read_tokens),
            cache_write_tokens: self
                .cache_write_tokens
                .saturating_add(other.cache_write_tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }

    /// What is left after `other`; never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_sub(other.input_tokens),
            output_tokens: self.output_tokens.saturating_sub(other.output_tokens),
            cache_read_tokens: self
                .cache_read_tokens
                .saturating_sub(other.cache_read_tokens),
            cache_write_tokens: self
                .cache_write_tokens
                .saturating_sub(other.cache_write_tokens),
            cost_micros: self.cost_micros.saturating_sub(other.cost_micros),
        }
    }

    /// Whether it is over the budget.
    pub fn exceeds(&self, budget: &Budget) -> bool {
        let tokens = self.input_tokens.saturating_add(self.output_tokens);
        budget
            .cost_micros_max
            .is_some_and(|max| self.cost_micros > max)
            || budget.tokens_max.is_some_and(|max| tokens > max)
    }
}
